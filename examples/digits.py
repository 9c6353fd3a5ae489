"""Train a small convolutional net on handwritten digits, on whatever hardware is there.

In a cluster (TF_CONFIG, srun) the same command is started once for each task.
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import autostrategy
from autostrategy.facts_text import describe

layers = keras.layers


def make_model():
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Rescaling(1 / 16)])
    model.add(layers.Conv2D(32, 3, padding="same", activation="relu"))
    model.add(layers.Conv2D(64, 3, padding="same", activation="relu"))
    model.add(layers.MaxPooling2D())
    model.add(layers.Conv2D(64, 3, activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dropout(0.4))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


parser = argparse.ArgumentParser(description="Train on scikit-learn's handwritten digits.")
parser.add_argument("--devices", type=int, help="how many; by default all that fit")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="rows, as for one device")
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    images.reshape(-1, 8, 8, 1), labels, test_size=0.25, stratify=labels, random_state=0
)

facts = autostrategy.probe()
size = {"batch_size": args.batch_size, "epochs": args.epochs}
plan = autostrategy.plan(facts, devices=args.devices, optimizer="adam", rows=len(x), **size)
chief = facts.cluster is None or facts.cluster.is_chief  # one process speaks for all
if chief:
    print(describe(facts), plan, sep="\n\n", end="\n\n")

keras.utils.set_random_seed(1)
history = autostrategy.fit(make_model, x, y, strategy=plan, verbose=2, **size)
_, accuracy = history.model.evaluate(x_test, y_test, verbose=0)
if chief:
    print(history.report)
print(f"test accuracy {accuracy:.4f}")
