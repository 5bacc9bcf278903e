"""Images: pinned, built, verified; what an environment consists of; and the lock that holds a recipe to it.

Public face: :func:`~verl_musa.image.build.build_image`, :func:`~verl_musa.image.provenance.environment_provenance`,
:func:`~verl_musa.image.verify.verify_environment`, :func:`~verl_musa.image.diff.diff`,
:func:`~verl_musa.image.lock.check_lock`. Nothing is imported here, so that a verb pays only for what it uses.
"""
