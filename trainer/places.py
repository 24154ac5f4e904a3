"""The names of everything in a run's folder."""

FINAL, CONFIG, PLAN, ENVIRONMENT = "final", "config.json", "plan.json", "environment.json"
CHECKPOINTS, LAST, BEST, EPOCHS = "checkpoints", "checkpoint-last", "checkpoint-best", "epochs"
METRICS, EVALUATION, REPORT, LINEAGE, CARD = "metrics.jsonl", "eval.json", "report.html", "lineage.json", "README.md"
CHECKPOINT_KIND = "checkpoint"
FINAL_KIND = "model"
CHAMPION = "champion"
"""In the folder of a name of models, not of a run."""
