"""What is known by name: models, devices, links, clusters and frameworks; and a user's own files.

Importing it is cheap: yaml and pydantic are imported by the first load.
"""

from estimator.catalog.assemble import load_cluster, load_node, resize
from estimator.catalog.fitted import collectives_yaml, load_collectives
from estimator.catalog.loader import (
    Kind,
    load_device,
    load_link,
    load_model,
    load_stack,
    names,
    published_active_parameters,
    published_parameters,
)
from estimator.catalog.writing import stack_yaml

__all__ = [
    "Kind",
    "collectives_yaml",
    "load_cluster",
    "load_collectives",
    "load_device",
    "load_link",
    "load_model",
    "load_node",
    "load_stack",
    "names",
    "published_active_parameters",
    "published_parameters",
    "resize",
    "stack_yaml",
]
