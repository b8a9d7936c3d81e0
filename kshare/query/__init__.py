"""The engine of a query: planner, feedback of tasks, sink. It knows no Spark.

Law: nothing is imported here, so that tasks need no planner.
"""
