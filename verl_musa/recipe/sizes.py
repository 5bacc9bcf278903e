"""A recipe on another number of hosts or devices than it is written for."""

from __future__ import annotations

from verl_musa.errors import RecipeError
from verl_musa.recipe.schema import Recipe


def sized(recipe: Recipe, *, nodes: int, devices_per_node: int) -> Recipe:
    """``recipe`` for ``nodes`` hosts of ``devices_per_node`` devices; all of verl's sizes follow.

    The memory that it needs on a host goes with the devices there.

    Raises:
        RecipeError: the recipe divides its devices among pools, which say their sizes themselves.
    """
    cluster = recipe.cluster
    if (nodes, devices_per_node) == (cluster.nodes, cluster.devices_per_node):
        return recipe
    if recipe.pools is not None:
        raise RecipeError(
            "this recipe divides its devices among pools and cannot be put on other hosts by an option",
            where=recipe.document.where(("pools",)),
            found=f"{nodes} hosts x {devices_per_node} devices",
            expected=f"{cluster.nodes} hosts x {cluster.devices_per_node} devices",
            fix="leave --hosts, --nodes and --devices-per-node as the recipe has them, or make a variant of it with pools of its own",
        )
    memory = cluster.host_memory_gib * devices_per_node / cluster.devices_per_node
    changed = cluster.model_copy(
        update={"nodes": nodes, "devices_per_node": devices_per_node, "host_memory_gib": memory}
    )
    return recipe.model_copy(update={"cluster": changed})
