"""The lab: tasks, training, evaluation and studies of attention variants."""
