"""What the checks of this room look at: a resolved recipe, with verl's interpolations followed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.checks import Finding, unknown
from verl_musa.errors import DataError
from verl_musa.recipe import UNSET, Resolved


@dataclass(frozen=True)
class Subject:
    """A resolved recipe under check.

    Attributes:
        resolved: the recipe.
        assets_ready: whether its assets have been made; where not, what lies in them is UNKNOWN, not missing.
    """

    resolved: Resolved
    assets_ready: bool = True

    def select(self, path: str, default: Any = None) -> Any:
        """Value of ``path`` in verl's config, interpolations resolved; ``default`` where unset, open or unresolvable."""
        return self.resolved.select(path, default)

    def where(self, path: str) -> str:
        """``file:line`` or option that set ``path``."""
        return self.resolved.origin(path)

    def integer(self, path: str) -> int:
        """``path`` as an integer.

        Raises:
            DataError: unset or of another type.
        """
        value = self.select(path)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(
                f"{path} must be an integer",
                where=self.where(path),
                found=f"{path} is {value!r}",
                expected="an integer",
                fix=f"set {path} to an integer",
            )
        return value

    def optional_integer(self, path: str) -> int | None:
        """``path`` as an integer, None where unset.

        Raises:
            DataError: of another type.
        """
        return None if self.select(path) is None else self.integer(path)

    @property
    def model_path(self) -> Path:
        """The model folder that verl will read."""
        return Path(str(self.select("actor_rollout_ref.model.path", "")))

    def files(self, split: str) -> list[Path]:
        """The files of ``split`` (``train`` or ``val``) that verl will read; verl takes one text or a list."""
        value = self.select(f"data.{split}_files", [])
        return [Path(str(item)) for item in (value if isinstance(value, list) else [value])]

    def model_config(self) -> dict[str, Any] | None:
        """The model's ``config.json``, else the facts of it in recipe.yaml; None where there are neither."""
        on_disk = self.model_file()
        if on_disk is not None:
            return on_disk
        model = self.resolved.recipe.model
        # The facts are those of the recipe's own model, not of one that --set puts in its place.
        if not model.config or str(self.model_path) != model.path:
            return None
        return {"architectures": [model.architecture], **model.config}

    def model_file(self) -> dict[str, Any] | None:
        """The model's ``config.json`` on disk; None where it cannot be read (``model.folder`` says why)."""
        try:
            value = json.loads((self.model_path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def not_made_yet(self, path: Path) -> Finding | None:
        """UNKNOWN where ``path`` lies in assets that have not been made, or under a name that the site does not set; else None."""
        if str(path).startswith(UNSET):
            name = str(path).removeprefix(UNSET).partition(">")[0]
            return unknown(
                f"{name} is not set in site.yaml", "copy site.example.yaml to site.yaml and fill it in"
            )
        assets = self.resolved.assets_dir
        if self.assets_ready or assets is None or not path.is_relative_to(assets):
            return None
        return unknown("the recipe's assets have not been made", "run the check without --no-assets")

    @property
    def world(self) -> int:
        """Devices of the whole job.

        Raises:
            DataError: not integers.
        """
        return self.integer("trainer.nnodes") * self.integer("trainer.n_gpus_per_node")
