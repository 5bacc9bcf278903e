"""The ``network`` block of recipe.yaml, turned into variables of the job's environment.

The names are MCCL's own, as public scripts for four nodes set them; ``MCCL_IB_HCA`` is not among them, since adapters are
named differently on each host.
"""

from __future__ import annotations

from typing import Any

from verl_musa.errors import RecipeError
from verl_musa.recipe.schema import Network, Recipe

INTERFACE = ("MCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ROCE = {"gid_index": "MCCL_IB_GID_INDEX", "timeout": "MCCL_IB_TIMEOUT", "retries": "MCCL_IB_RETRY_CNT"}


def network_variables(network: Network) -> dict[str, str]:
    """Variable -> text for one block; options that are left out give none."""
    variables = {} if network.interface is None else dict.fromkeys(INTERFACE, network.interface)
    given = network.model_dump(exclude_none=True)
    return {**variables, **{name: str(given[option]) for option, name in ROCE.items() if option in given}}


def with_network(runtime_env: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """``runtime_env`` with the variables of the recipe's network block.

    Raises:
        RecipeError: runtime_env.yaml sets one of them too.
    """
    if recipe.network is None:
        return runtime_env
    owned, given = network_variables(recipe.network), runtime_env.get("env_vars", {})
    twice = next((name for name in owned if name in given), None)
    if twice is not None:
        raise RecipeError(
            f"environment variable {twice} is decided by the network block of recipe.yaml",
            where=str(recipe.folder / "runtime_env.yaml"),
            found=f"{twice}: {given[twice]!r}",
            expected=f"the value that {recipe.document.where(('network',))} gives: {owned[twice]!r}",
            fix=f"remove {twice} from runtime_env.yaml, or change the network block",
        )
    return {**runtime_env, "env_vars": {**given, **owned}}
