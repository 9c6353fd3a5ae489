"""Train any Keras 3 model on whatever hardware is there, with one call."""
