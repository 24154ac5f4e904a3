"""Fine-tuning on labelled data: classes, numbers, several labels or a label per word; and predictions of new texts."""
