"""What a user may write in ``recipe.yaml`` (schema version 1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    model_validator,
)

from verl_musa.recipe._yaml import Document

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"


def _stays_inside(value: str) -> str:
    """Reject what could leave the recipe folder by its spelling; symlinks are looked at when the recipe is loaded."""
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\\" in value or "\0" in value or value in {"", "."}:
        raise ValueError("must be a relative path inside the recipe folder")
    return value


Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\n\r\x00]+$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
DottedName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
InnerPath = Annotated[str, AfterValidator(_stays_inside)]
Files = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Extra = Literal["megatron", "vllm"]
Role = Literal["actor", "ref", "critic"]


class Strict(BaseModel):
    """No unknown key, no silent conversion, no change after loading."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True, validate_by_name=True
    )


class Device(Strict):
    """The device that the job runs on."""

    type: Literal["musa"]
    """Device name as torch knows it."""

    simulated: bool
    """True: the hardware-free simulator must be used. False: a real Moore Threads GPU must be used."""


class Assets(Strict):
    """Files that a seeded script makes once, on first use."""

    script: InnerPath
    """Python file in the recipe folder, called as ``python SCRIPT --out DIR --seed N``; it must not import its siblings."""

    seed: Seed
    """Seed handed to the script; part of the cache key."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 900
    """Longest time the script may take, in seconds."""


class Model(Strict):
    """A model on disk."""

    path: Text
    """Folder in Hugging Face layout, usually built from ``${assets.dir}`` or ``${site.NAME}``."""

    architecture: Identifier
    """Class name that the folder's ``config.json`` must carry in ``architectures``."""

    hub: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """Name on the model hub that the folder was taken from, ``owner/name``."""

    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] | None = None
    """Commit of that hub repository; left out: not pinned."""

    config: dict[Text, Any] = Field(default_factory=dict)
    """What ``config.json`` says, as far as arithmetic needs it: checks and plans then need no model at hand. Where the folder
    is there, both must agree."""


class Data(Strict):
    """Prompts, in verl's parquet layout."""

    train: Files
    """Files with the training prompts."""

    val: Files
    """Files with the validation prompts."""

    sources: dict[Literal["train", "val"], Text] = Field(default_factory=dict)
    """Name of the data set that each split is prepared from (``verl-musa data prepare``)."""

    columns: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Columns that every file must have; left out: those that verl itself reads."""


class Reward(Strict):
    """The function that scores a response."""

    file: InnerPath
    """Python file in the recipe folder."""

    function: Identifier = "compute_score"
    """Function in that file. Default: verl's own (``reward.custom_reward_function.name``)."""


class Conversion(Strict):
    """Weights that are converted to Megatron-Core's format, and the roles that load them from there."""

    roles: Annotated[tuple[Role, ...], Field(min_length=1, strict=False)]
    """``actor`` and ``ref`` load the recipe's model, ``critic`` its critic. Sets ``use_dist_checkpointing`` and
    ``dist_checkpointing_path`` of each in verl's config."""

    output: Text
    """The checkpoint's folder, usually built from ``${assets.dir}`` or ``${site.NAME}``."""

    spec: Literal["te", "local"] = "te"
    """Names of the layers: ``te``, or ``local`` for Megatron-Core's unpatched local ones."""

    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """The type that is written; left out: each tensor keeps its own."""

    pad_vocab: Annotated[int, Field(ge=1)] = 1
    """The vocabulary becomes a multiple of this."""

    value_head: bool = False
    """Write a fresh value head in place of a language model's output layer; for a critic."""

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if "critic" in self.roles and len(self.roles) > 1:
            raise ValueError("the critic's weights are its own: give it a conversion of its own")
        if self.value_head and self.roles != ("critic",):
            raise ValueError("value_head is for roles: [critic]")
        return self


class Cluster(Strict):
    """The machines that the recipe is written for."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Number of hosts."""

    devices_per_node: Annotated[int, Field(ge=1, le=64)]
    """Devices used on each host."""

    cpus_per_node: Annotated[int, Field(ge=1, le=4096)]
    """Logical CPUs that Ray may hand out on each host; verl's placement asks for 3 per device."""

    host_memory_gib: Annotated[float, Field(gt=0, le=65536)]
    """Host memory that the job needs on each host, in GiB."""


class Pool(Strict):
    """Devices of one resource pool."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Number of hosts."""

    devices_per_node: Annotated[int, Field(ge=1, le=64)]
    """Devices on each of them."""


class Pools(Strict):
    """How the devices are divided among verl's resource pools, where not all roles share them."""

    trainer: Pool
    """Actor, reference and critic; ``trainer.nnodes`` and ``trainer.n_gpus_per_node`` in verl."""

    rollout: Pool | None = None
    """Rollout servers, for placement ``split`` only; ``actor_rollout_ref.rollout.nnodes`` and ``.n_gpus_per_node`` in verl."""

    reward: Pool | None = None
    """Servers of the reward model; ``reward.reward_model.nnodes`` and ``.n_gpus_per_node``. Left out: the trainer's pool."""


class Trainer(Strict):
    """The verl entry point."""

    module: DottedName = "verl.trainer.main_ppo"
    """Module run as ``python -m MODULE``; its ``config`` folder holds the tree that overrides refer to."""

    config_name: Identifier = "ppo_trainer"
    """Name of the primary config in that folder."""


class SGLang(Strict):
    """Options of the SGLang rollout server that decide speed and memory on Moore Threads GPUs.

    Left out (None): verl's or SGLang's own default. Any other option of SGLang's ``ServerArgs`` goes into config.yaml, under
    ``actor_rollout_ref.rollout.engine_kwargs.sglang``.
    """

    attention_backend: Literal["fa3", "triton", "torch_native", "flashinfer", "intel_amx"] | None = None
    """Attention kernels. MUSA: ``fa3`` (needs ``mate`` and page size 64) or ``triton``; on the CPU ``torch_native``."""

    graphs: bool | None = None
    """Capture decode graphs. Sets both verl's ``enforce_eager`` and SGLang's ``disable_cuda_graph``, so that neither undoes the other."""

    radix_cache: bool | None = None
    """Share the cached keys and values of equal prompt prefixes. What is found there depends on timing."""

    overlap_schedule: bool | None = None
    """Prepare the next batch on the host while the device computes this one."""

    memory_saver: bool | None = None
    """Give weights and cache back between phases. Sets SGLang's ``enable_memory_saver`` and verl's ``free_cache_engine``."""

    page_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in one page of the key-value cache. SGLang's default: 64 on MUSA, 1 elsewhere."""


class Network(Strict):
    """How the hosts reach each other; turned into variables of the job's environment."""

    profile: Literal["single", "tcp", "roce"]
    """``single``: one host. ``tcp``: sockets over ``interface``. ``roce``: RDMA over Ethernet, with sockets for the bootstrap."""

    interface: Text | None = None
    """Training interface, the same name on every host, usually ``${site.training_interface}``; MCCL and Gloo are bound to it."""

    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """``MCCL_IB_GID_INDEX``: entry of the adapter's GID table, 3 for RoCE v2 over IPv4 on most adapters."""

    timeout: Annotated[int, Field(ge=1, le=31)] | None = None
    """``MCCL_IB_TIMEOUT``, an exponent as the verbs API counts it: 20 is about 4 s."""

    retries: Annotated[int, Field(ge=1, le=255)] | None = None
    """``MCCL_IB_RETRY_CNT``."""

    @model_validator(mode="after")
    def _fields_fit_the_profile(self) -> Self:
        if (self.interface is None) != (self.profile == "single"):
            raise ValueError("interface belongs to the profiles tcp and roce, and both need it")
        if self.profile != "roce" and (self.gid_index, self.timeout, self.retries) != (None, None, None):
            raise ValueError("gid_index, timeout and retries belong to the profile roce")
        return self


class Expect(Strict):
    """What the card promises; the checks ``card.time`` and ``card.memory`` hold it against the plan."""

    step_minutes: Annotated[tuple[float, float], Field(strict=False)]
    """Least and most minutes of a step."""

    total_hours: Annotated[tuple[float, float], Field(strict=False)]
    """Least and most hours of a whole run: steps x ``step_minutes``."""

    device_gib: Annotated[tuple[float, float], Field(strict=False)]
    """Least and most memory of a device at the peak of a step, in GiB."""


class Accept(Strict):
    """What a finished run must reach to count as a success; a bound that is left out is not held."""

    score_last5_min: float | None = None
    """Least mean of ``critic/score/mean`` over the last five steps, for runs of the recipe's own length."""

    score_gain_min: Annotated[float, Field(gt=0)] | None = None
    """Least ratio of that mean to the mean over the first five steps, for runs of the recipe's own length."""

    rollout_probs_diff_max: Annotated[float, Field(gt=0)] | None = None
    """Largest ``training/rollout_probs_diff_max`` of any step, held at every step of every run."""

    log_ppl_abs_diff_max: Annotated[float, Field(gt=0)] | None = None
    """Largest ``rollout_corr/log_ppl_abs_diff`` of any step (mean over sequences of the absolute difference of their mean
    log-probabilities, rollout against trainer), held likewise. 1e-5 suits float32, 2e-3 bfloat16."""


class Variant(Strict):
    """One ``variants/NAME.yaml``: what is different when the recipe is run with that variant."""

    summary: Text
    """What is different, on one line."""

    recipe: dict[str, Any] = Field(default_factory=dict)
    """Fields of recipe.yaml, merged over it: mappings key by key, all else whole."""

    drop: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Keys of config.yaml, each with all beneath it, that are not taken over (verl's keys, without ``+``)."""

    drop_if_set: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """The same for keys that only some other variant sets; where it is not named, there is nothing to drop."""

    config: dict[str, Any] = Field(default_factory=dict)
    """verl's override keys, as in config.yaml, laid over it."""

    config_with: dict[Text, dict[str, Any]] = Field(default_factory=dict)
    """Name of another variant -> more of the same, for runs that have that variant too."""

    env_vars: dict[Text, Text] = Field(default_factory=dict)
    """Environment variables, laid over those of runtime_env.yaml."""


@dataclass(frozen=True)
class Layer:
    """A variant that was read.

    Attributes:
        name: the file's name without its ending.
        variant: its content.
        document: the file, with its line numbers.
    """

    name: str
    variant: Variant
    document: Document


class Recipe(Strict):
    """One ``recipe.yaml``."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    """Version of this schema."""

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    """Name of the recipe, equal to its folder's name."""

    version: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+([-+][0-9A-Za-z.-]+)?$")]
    """Version of the recipe, MAJOR.MINOR.PATCH."""

    summary: Text
    """What it trains, on one line."""

    image: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    """Folder under ``images/`` that the recipe runs in."""

    extras: Annotated[tuple[Extra, ...], Field(strict=False)] = ()
    """Packages that only some jobs may see; they lie aside from the shared environment and join the job's ``PYTHONPATH``."""

    device: Device
    """The device that the job runs on."""

    assets: Assets | None = None
    """Files made on first use; leave out when all files exist already."""

    model: Model
    """The policy that is trained."""

    critic: Model | None = None
    """The model that the critic starts from; left out where there is no critic, or config.yaml says it."""

    conversion: Annotated[tuple[Conversion, ...], Field(strict=False)] = ()
    """Weights that the trainer loads from Megatron-Core checkpoints; left out: as Hugging Face weights."""

    data: Data
    """Prompts."""

    reward_model: Model | None = None
    """A model that scores responses, served by verl beside the rollout; left out: there is none."""

    reward: Reward | None = None
    """The scoring function; without it verl picks one of its own by ``data_source``."""

    cluster: Cluster
    """The machines that the recipe is written for."""

    trainer: Trainer = Trainer()
    """The verl entry point."""

    placement: Literal["colocated", "split"] = "colocated"
    """``colocated``: trainer and rollout share the devices (verl's hybrid engine). ``split``: each has its own pool."""

    pools: Pools | None = None
    """How the devices are divided; left out: all roles share them."""

    sglang: SGLang | None = None
    """Options of the SGLang server."""

    network: Network | None = None
    """How the hosts reach each other; left out: as runtime_env.yaml says."""

    expect: Expect | None = None
    """What the card says about time and memory."""

    accept: Accept | None = None
    """What a finished run must reach to count as a success."""

    seed: Seed
    """Seed of the run; set for every ``seed`` and ``data_loader_seed`` that verl's config has."""

    @model_validator(mode="after")
    def _pools_fit_the_placement(self) -> Self:
        rollout = self.pools is not None and self.pools.rollout is not None
        if rollout != (self.placement == "split"):
            raise ValueError("pools.rollout belongs to placement split, and only to it")
        if self.pools is not None and self.pools.reward is not None and self.reward_model is None:
            raise ValueError("pools.reward needs a reward_model")
        return self

    @model_validator(mode="after")
    def _conversions_fit_the_models(self) -> Self:
        roles = [role for one in self.conversion for role in one.roles]
        twice = next((role for role in roles if roles.count(role) > 1), None)
        if twice is not None:
            raise ValueError(f"conversion names the role {twice} twice")
        for one in self.conversion:
            if "critic" not in one.roles:
                continue
            if self.critic is None:
                raise ValueError("conversion has a critic, but there is no 'critic' with its path")
            if one.value_head != self.critic.architecture.endswith("ForCausalLM"):
                need = "needs" if self.critic.architecture.endswith("ForCausalLM") else "has its own, without"
                raise ValueError(f"a critic made from {self.critic.architecture} {need} value_head: true")
        return self

    _document: Document | None = PrivateAttr(default=None)
    _layers: tuple[Layer, ...] = PrivateAttr(default=())

    def attach(self, document: Document, layers: tuple[Layer, ...] = ()) -> Self:
        """Remember the file that this was read from, and the variants that were laid over it."""
        self._document = document
        self._layers = layers
        return self

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The variants that were laid over the recipe, in that order."""
        return self._layers

    @property
    def variants(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(layer.name for layer in self._layers)

    @property
    def title(self) -> str:
        """``NAME``, or ``NAME@first+second`` with variants; :func:`verl_musa.recipe.load_recipe` takes it back."""
        return f"{self.name}@{'+'.join(self.variants)}" if self._layers else self.name

    @property
    def document(self) -> Document:
        """The file that this recipe was read from, with its line numbers."""
        if self._document is None:
            raise ValueError("this Recipe was not read from a file; use load_recipe")
        return self._document

    @property
    def folder(self) -> Path:
        """The recipe folder, absolute, symlinks resolved."""
        return self.document.path.parent.resolve()

    @property
    def reward_file(self) -> Path | None:
        """Absolute path of the reward function's file."""
        return None if self.reward is None else self.folder / self.reward.file

    @property
    def assets_script(self) -> Path | None:
        """Absolute path of the assets script."""
        return None if self.assets is None else self.folder / self.assets.script
