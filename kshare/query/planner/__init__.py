"""The planner: options, the cluster and the checkpoint in; offsets and tasks out.

Guarantees: the offset dict of a batch, with the one before it, says completely what the batch
reads; a batch that is planned again is the same. Every offset between two dicts is read or reported
as lost.
Cost: two round trips to the cluster a trigger, for any number of partitions; one more if a
partition's ranges stand at different offsets.

Each method of the Spark plug-in is one call into this package.
"""

from kshare.core.tasks import PlannedSlice, Task
from kshare.query.planner.batch_query import plan_batch
from kshare.query.planner.stream import StreamPlanner

__all__ = ["PlannedSlice", "StreamPlanner", "Task", "plan_batch"]
