"""Fine-tuning on labelled data: classes, numbers, several labels or words, and predictions of new texts."""
