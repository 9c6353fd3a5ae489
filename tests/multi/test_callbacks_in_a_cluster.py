"""One task writes, all decide alike, and a run can be taken up again."""

import keras
import numpy as np
import pytest
import workers

BODY = """
    import keras, autostrategy, tensorflow as tf
    folder, mode = os.environ["FOLDER"], os.environ["MODE"]
    me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    r = np.random.default_rng(0)
    X = r.normal(size=(32, 2)).astype("f4")
    V = np.vstack([np.ones((8, 2)), -np.ones((8, 2))]).astype("f4")
    Vy = np.vstack([np.zeros((8, 1)), 9 * np.ones((8, 1))]).astype("f4")

    def model_fn():
        m = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        m.compile(keras.optimizers.Adam(0.1), "mse")
        return m

    class Die(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if mode == "kill" and epoch == 1 and me == 1:
                os._exit(9)

    class StopOne(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if mode == "one" and epoch == 2 and me == 1:
                self.model.stop_training = True

    class StopOneAtABatch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if me == 1 and batch == 1:
                self.model.stop_training = True

    C = keras.callbacks
    callbacks = [
        C.ModelCheckpoint(folder + "/best.keras", save_best_only=True),
        C.BackupAndRestore(folder + "/backup"),
        C.TensorBoard(folder + "/logs"),
        C.CSVLogger(folder + "/log.csv"),
        Die(),
        StopOne(),
    ]
    if mode == "batch":
        callbacks.append(StopOneAtABatch())
    if mode == "early":
        callbacks.append(C.EarlyStopping(patience=0, min_delta=1e9))
    result = autostrategy.fit(
        model_fn,
        tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(8),
        epochs=6,
        validation_data=tf.data.Dataset.from_tensor_slices((V, Vy)).batch(8),
        callbacks=callbacks,
        batch_scaling="off",
        verbose=0,
    )
    tell({
        "epochs": len(result.history["loss"]),
        "iterations": int(result.model.optimizer.iterations),
        "weights": [w.tolist() for w in result.model.get_weights()],
    })
"""


def go(mode, folder, tmp_path, timeout=120):
    return workers.run(
        BODY,
        2,
        tmp_path=tmp_path,
        timeout=timeout,
        env={"MODE": mode, "FOLDER": str(folder)},
    )


@pytest.mark.usefixtures("four_cpus")  # loading a model fixes the devices of this process
def test_only_the_chief_writes_files(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()

    one, two = workers.told(go("plain", folder, tmp_path))

    assert one == two
    assert [path.name for path in folder.glob("*.keras")] == ["best.keras"]
    keras.saving.load_model(folder / "best.keras")
    assert len((folder / "log.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    "mode",
    [
        "one",
        pytest.param("early", marks=pytest.mark.slow),
        pytest.param("batch", marks=pytest.mark.slow),
    ],
)
def test_workers_stop_at_the_same_epoch(mode, tmp_path):
    """Also when a callback of one worker alone asks to stop."""
    one, two = workers.told(go(mode, tmp_path, tmp_path))

    assert one["epochs"] == two["epochs"] < 6
    assert one["iterations"] == two["iterations"]


@pytest.mark.slow
def test_a_killed_worker_ends_the_other_and_the_run_can_be_taken_up_again(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    wanted = workers.told(go("plain", undisturbed, tmp_path))[0]["weights"]

    ended = go("kill", tmp_path, tmp_path)

    assert ended[1].status == 9
    assert ended[0].status not in (0, "timeout")
    one, two = workers.told(go("again", tmp_path, tmp_path))
    assert one["iterations"] == two["iterations"] == 24
    assert one["weights"] == two["weights"]
    for ours, theirs in zip(one["weights"], wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
