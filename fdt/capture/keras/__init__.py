"""Training by Keras: `fit` and `train_on_batch`, of both generations."""
