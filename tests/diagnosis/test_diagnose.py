"""Simulated machines, each broken in one way: the true cause is the first finding."""

import re
from pathlib import Path

import pytest
from machines import (
    GIBIBYTE,
    cpu_evidence,
    facts,
    gpu,
    gpu_evidence,
    two_workers,
)

from autostrategy.diagnosis import diagnose
from autostrategy.diagnosis.doctor import examine
from autostrategy.facts import Device, DeviceProcess, Facts

RECORDED = sorted((Path(__file__).parents[1] / "facts").glob("*.json"))

TWO = (gpu(0), gpu(1))
NO_DRIVER = {
    "device_files": (),
    "driver_loaded": False,
    "missing_libraries": {"libcuda.so.1": "cannot open shared object file"},
    "answer": {"gpus": 0, "stderr": "Could not find cuda drivers on your machine"},
}
PIP_HAS_NONE = {"keras": "3.15.1", "tensorflow": "2.21.0"}

# name: facts, evidence, severity, what, evidence, remedy
BROKEN = {
    "nothing installed": (
        facts(),
        cpu_evidence(packages={}),
        ("blocked", "TensorFlow is not installed", "no package tensorflow"),
        "pip install 'tensorflow>=2.20,<2.22'",
    ),
    "nothing installed, with GPUs": (
        facts(*TWO),
        gpu_evidence(packages={"keras": "3.15.1"}),
        ("blocked", "TensorFlow is not installed", ""),
        "pip install 'tensorflow[and-cuda]>=2.20,<2.22'",
    ),
    "no Keras": (
        facts(),
        cpu_evidence(packages={"tensorflow": "2.21.0"}),
        ("blocked", "Keras is not installed", "no package keras"),
        "pip install 'keras>=3.12,<3.16'",
    ),
    "old TensorFlow": (
        facts(),
        cpu_evidence(packages={"keras": "3.15.1", "tensorflow": "2.17.0"}),
        ("blocked", "tensorflow 2.17.0 is not supported", "at least 2.20 and below 2.22"),
        "pip install 'tensorflow>=2.20,<2.22'",
    ),
    "Keras too new": (
        facts(),
        cpu_evidence(packages={"keras": "3.20.0", "tensorflow": "2.21.0"}),
        ("blocked", "keras 3.20.0 is not supported", "Received: 3.20.0"),
        "pip install 'keras>=3.12,<3.16'",
    ),
    "metal plugin": (
        facts(platform="darwin"),
        cpu_evidence(packages={**PIP_HAS_NONE, "tensorflow-metal": "1.2.0"}),
        ("blocked", "tensorflow-metal keeps", "tensorflow-metal 1.2.0"),
        "pip uninstall -y tensorflow-metal",
    ),
    "another backend": (
        facts(),
        cpu_evidence(keras_backend=("jax", "keras.json")),
        ("blocked", "Keras would run on jax", "keras.json says 'jax'"),
        "export KERAS_BACKEND=tensorflow",
    ),
    "wrong TF_CONFIG": (
        facts(),
        cpu_evidence(probe_errors=("TF_CONFIG must be JSON. Received: '{'. It should be.",)),
        ("blocked", "because TF_CONFIG contradicts itself", "must be JSON"),
        "unset TF_CONFIG",
    ),
    "wrong Slurm step": (
        facts(),
        cpu_evidence(probe_errors=("SLURM_PROCID must number a task. Received: '9'.",)),
        ("blocked", "because the Slurm step contradicts itself", "SLURM_PROCID must"),
        "unset ${!SLURM_*}  # and start with srun inside the job",
    ),
    "TensorFlow crashes": (
        facts(*TWO),
        gpu_evidence(answer={"gpus": None, "fault": "it ended with status -11", "stderr": "a\nb"}),
        ("blocked", "TensorFlow does not start", "it ended with status -11; a; b"),
        "pip install --force-reinstall tensorflow==2.21.0",
    ),
    "TensorFlow waits without end": (
        facts(*TWO),
        gpu_evidence(answer={"gpus": None, "fault": "no answer within 9 s", "timed_out": True}),
        ("blocked", "TensorFlow does not start", "no answer within 9 s"),
        "nvidia-smi  # must answer at once; else: sudo reboot",
    ),
    "container without its GPUs": (
        facts(),
        gpu_evidence(**NO_DRIVER, container="/.dockerenv", env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        ("blocked", "not given the GPUs of its host", "NVIDIA_VISIBLE_DEVICES=all, no /dev/nv"),
        "docker run --gpus all ...",
    ),
    "pod without its GPUs": (
        facts(),
        gpu_evidence(
            **NO_DRIVER,
            container="KUBERNETES_SERVICE_HOST",
            env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        ),
        ("blocked", "not given the GPUs of its host", "2 NVIDIA GPUs on PCI"),
        "resources: {limits: {nvidia.com/gpu: 1}}  # in the pod's container",
    ),
    "container that asks where there is no GPU": (
        facts(),
        cpu_evidence(container="/.dockerenv", env={"NVIDIA_VISIBLE_DEVICES": "0"}),
        ("warning", "not given the GPUs that it asks for", "NVIDIA_VISIBLE_DEVICES=0"),
        "docker run --gpus all ...",
    ),
    "no driver": (
        facts(),
        gpu_evidence(**NO_DRIVER, nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND"),
        ("blocked", "2 NVIDIA GPUs are here, and NVIDIA's driver is not installed", "0000:17"),
        "sudo ubuntu-drivers install && sudo reboot",
    ),
    "no driver on a rare system": (
        facts(),
        gpu_evidence(1, **NO_DRIVER, distribution="gentoo"),
        ("blocked", "1 NVIDIA GPU is here", ""),
        "see https://docs.nvidia.com/datacenter/tesla/driver-installation-guide for gentoo",
    ),
    "driver not loaded": (
        facts(),
        gpu_evidence(**NO_DRIVER, nvml_error="NVML_ERROR_DRIVER_NOT_LOADED"),
        ("blocked", "NVIDIA's driver is not loaded", ""),
        "sudo modprobe nvidia",
    ),
    "driver updated under way": (
        facts(),
        gpu_evidence(
            nvml_error="NVML_ERROR_LIB_RM_VERSION_MISMATCH",
            answer={"gpus": 0, "stderr": "failed call to cuInit: 803"},
        ),
        ("blocked", "updated and not loaded again", "version mismatch"),
        "sudo reboot",
    ),
    "no permission": (
        facts(),
        gpu_evidence(nvml_error="NVML_ERROR_NO_PERMISSION"),
        ("blocked", "may not open the GPUs", "insufficient permissions"),
        'sudo usermod -aG video "$USER"  # then log in again',
    ),
    "driver that does not answer": (
        facts(),
        gpu_evidence(nvml_error="Unknown Error", answer={"gpus": 0}),
        ("blocked", "driver does not answer", "NVML: Unknown Error"),
        "sudo dmesg | grep -i nvrm  # says why; then: sudo reboot",
    ),
    "driver without NVML": (
        facts(),
        gpu_evidence(nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND"),
        ("blocked", "libnvidia-ml.so.1 is not found", "the driver is loaded"),
        "sudo ldconfig",
    ),
    "container without NVML": (
        facts(),
        gpu_evidence(nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND", container="/.dockerenv"),
        ("blocked", "libnvidia-ml.so.1 is not found", "the driver is loaded"),
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
    ),
    "no binding of NVML": (
        facts(notes=("NVML cannot be asked: No module named 'pynvml'. Run pip install.",)),
        gpu_evidence(),
        ("blocked", "nvidia-ml-py is missing", "No module named 'pynvml'"),
        "pip install nvidia-ml-py",
    ),
    "a Slurm job without a GPU": (
        facts(notes=("GPU 0 of 2 is kept from this process's job or container.",)),
        gpu_evidence(env={"SLURM_JOB_ID": "7"}, answer={"gpus": 0}),
        ("blocked", "given none of the GPUs", "GPU 0 of 2 is kept"),
        "srun --gpus=1 ...",
    ),
    "a container with device files of none": (
        facts(notes=("GPU 0 of 2 is kept from this process's job or container.",)),
        gpu_evidence(container="/.dockerenv", answer={"gpus": 0}),
        ("blocked", "given none of the GPUs", "GPU 0 of 2 is kept"),
        "docker run --gpus all ...",
    ),
    "old driver": (
        facts(*TWO, driver_version="470.82.01", cuda_driver_version="11.4"),
        gpu_evidence(answer={"gpus": 0, "stderr": "CUDA driver version is insufficient"}),
        ("blocked", "too old for CUDA 12", "driver 470.82.01, CUDA up to 11.4"),
        "sudo ubuntu-drivers install && sudo reboot  # 525.60.13 or later",
    ),
    "container that may only look": (
        facts(*TWO),
        gpu_evidence(
            container="/.dockerenv",
            env={"NVIDIA_DRIVER_CAPABILITIES": "utility"},
            missing_libraries={"libcuda.so.1": "cannot open"},
            answer={"gpus": 0, "stderr": "Could not find cuda drivers"},
        ),
        ("blocked", "without the libraries to compute", "=utility does not have compute"),
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
    ),
    "all GPUs hidden": (
        facts(*(gpu(index, visible_index=None) for index in (0, 1)), visible_devices="-1"),
        gpu_evidence(answer={"gpus": 0}, env={"CUDA_VISIBLE_DEVICES": "-1"}),
        ("warning", "CUDA_VISIBLE_DEVICES hides 2 of 2 GPUs", "CUDA_VISIBLE_DEVICES='-1'"),
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "a GPU named that is not there": (
        facts(
            gpu(0),
            gpu(1, visible_index=None),
            visible_devices="0,7",
            notes=(
                "CUDA_VISIBLE_DEVICES='0,7': no GPU of this process is '7', which hides it "
                "alone. Unset it to see all GPUs.",
            ),
        ),
        gpu_evidence(answer={"gpus": 1}),
        ("blocked", "names a GPU that is not there or twice, which hides 1 of 2", "is '7'"),
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "one GPU too many named": (
        facts(
            *TWO,
            visible_devices="0,1,2",
            notes=(
                "CUDA_VISIBLE_DEVICES='0,1,2': no GPU of this process is '2', which hides it "
                "alone. Unset it to see all GPUs.",
            ),
        ),
        gpu_evidence(),
        ("warning", "not there or twice, which hides 0 of 2 GPUs", "is '2'"),
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "MIG without instances": (
        facts(gpu(0, mig="parent", visible_index=None)),
        gpu_evidence(1, answer={"gpus": 0}),
        ("blocked", "GPU 0 is in MIG mode and has no instance", "0 instances"),
        "sudo nvidia-smi -i 0 -mig 0",
    ),
    "CPU wheel": (
        facts(*TWO),
        gpu_evidence(
            packages={"keras": "3.15.1", "tensorflow-cpu": "2.21.0"},
            missing_libraries={"libcudart.so.12": "no file"},
            answer={"gpus": 0, "built_with_cuda": False},
        ),
        ("blocked", "built for the CPU alone, beside 2 NVIDIA GPUs", "tensorflow-cpu 2.21.0"),
        "pip uninstall -y tensorflow-cpu && pip install 'tensorflow[and-cuda]'",
    ),
    "TensorFlow without CUDA's packages": (
        facts(*TWO),
        gpu_evidence(
            packages=PIP_HAS_NONE,
            missing_libraries={"libcudart.so.12": "no file", "libcudnn.so.9": "no file"},
            answer={"gpus": 0, "stderr": "Cannot dlopen some GPU libraries."},
            libdevice=False,
        ),
        (
            "blocked",
            "cannot load CUDA's libraries, which are not installed",
            "missing: libcudart.so.12, libcudnn.so.9",
        ),
        "pip install 'tensorflow[and-cuda]'",
    ),
    "one library missing": (
        facts(*TWO),
        gpu_evidence(missing_libraries={"libcudnn.so.9": "no file"}, answer={"gpus": 0}),
        ("blocked", "cannot load all of CUDA's libraries", "missing: libcudnn.so.9"),
        "pip install 'tensorflow[and-cuda]'",
    ),
    "libcuda not found": (
        facts(*TWO),
        gpu_evidence(missing_libraries={"libcuda.so.1": "no such file"}, answer={"gpus": 0}),
        ("blocked", "own library libcuda.so.1", "no such file"),
        "sudo ldconfig  # finds it where the driver was installed; else install it again",
    ),
    "libcuda not found in WSL2": (
        facts(*TWO),
        gpu_evidence(
            missing_libraries={"libcuda.so.1": "no such file"},
            answer={"gpus": 0},
            device_files=("dxg",),
        ),
        ("blocked", "own library libcuda.so.1", ""),
        "export LD_LIBRARY_PATH=/usr/lib/wsl/lib",
    ),
    "libcuda not found in a container": (
        facts(*TWO),
        gpu_evidence(
            missing_libraries={"libcuda.so.1": "no such file"},
            answer={"gpus": 0},
            container="/.dockerenv",
        ),
        ("blocked", "own library libcuda.so.1", ""),
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
    ),
    "Maxwell": (
        facts(gpu(0, name="NVIDIA GeForce GTX 980", compute_capability="5.2")),
        gpu_evidence(1, answer={"gpus": 0, "stderr": "Ignoring visible gpu device"}),
        ("blocked", "NVIDIA GeForce GTX 980 is too old", "compute capability 5.2"),
        "autostrategy run train.py  # on the CPU, or on a GPU of compute capability 6.0 or more",
    ),
    "Blackwell": (
        facts(gpu(0, name="NVIDIA GeForce RTX 5090", compute_capability="12.0")),
        gpu_evidence(1),
        ("warning", "RTX 5090 is newer than this TensorFlow", "capability 12.0; TensorFlow has sm"),
        "export CUDA_CACHE_MAXSIZE=4294967296  # so that it is compiled only once",
    ),
    "fabric manager not running": (
        facts(*TWO),
        gpu_evidence(answer={"gpus": 0, "stderr": "x\ncuInit: CUDA_ERROR_SYSTEM_NOT_READY\ny"}),
        ("blocked", "sees 0 of the 2 GPUs", "cuInit: CUDA_ERROR_SYSTEM_NOT_READY"),
        "sudo systemctl start nvidia-fabricmanager",
    ),
    "unified memory module not loaded": (
        facts(*TWO),
        gpu_evidence(answer={"gpus": 0, "stderr": "cuInit: CUDA_ERROR_UNKNOWN: unknown error"}),
        ("blocked", "sees 0 of the 2 GPUs", "CUDA_ERROR_UNKNOWN"),
        "sudo modprobe nvidia_uvm",
    ),
    "TensorFlow says nothing": (
        facts(*TWO),
        gpu_evidence(answer={"gpus": 1}),
        ("blocked", "sees 1 of the 2 GPUs", "does not say why"),
        "TF_CPP_MAX_VLOG_LEVEL=1 python -c 'import tensorflow as tf; "
        'tf.config.list_physical_devices("GPU")\'',
    ),
    "old cuDNN": (
        facts(*TWO),
        gpu_evidence(cudnn_version=(9, 1, 0)),
        ("blocked", "the first convolution fails", "cuDNN 9.1.0 is loaded; 9.3 is needed"),
        "pip install --upgrade 'nvidia-cudnn-cu12>=9.3,<10'",
    ),
    "old cuDNN before pip's": (
        facts(*TWO),
        gpu_evidence(cudnn_version=(9, 1, 0), env={"LD_LIBRARY_PATH": "/opt/cuda/lib64"}),
        ("blocked", "the first convolution fails", ""),
        "unset LD_LIBRARY_PATH  # it comes before the cuDNN that pip installed",
    ),
    "a lost card": (
        facts(
            gpu(1, visible_index=0),
            notes=(
                "GPU 0 of 2 cannot be read (GPU is lost). It fell off the bus: reboot, and see "
                "the kernel log for 'Xid 79'.",
            ),
        ),
        gpu_evidence(1),
        ("blocked", "GPU 0 of 2 cannot be read (GPU is lost).", "Xid 79"),
        "It fell off the bus: reboot, and see the kernel log for 'Xid 79'.",
    ),
    "no libdevice": (
        facts(*TWO),
        gpu_evidence(libdevice=False),
        ("warning", "jit_compile=True fails", "no /usr/local/cuda has it"),
        "pip install 'nvidia-cuda-nvcc-cu12<13'",
    ),
    "a busy GPU": (
        facts(
            gpu(0),
            gpu(
                1,
                memory_free_bytes=20 * GIBIBYTE,
                processes=(DeviceProcess(pid=4321, name="python3"), DeviceProcess(pid=5)),
            ),
        ),
        gpu_evidence(),
        ("warning", "hold memory of GPU:1", "75% of GPU:1 by process 4321 (python3), process 5"),
        "export CUDA_VISIBLE_DEVICES=GPU-0",
    ),
    "the only GPU busy": (
        facts(gpu(0, memory_free_bytes=GIBIBYTE, processes=(DeviceProcess(pid=4321),))),
        gpu_evidence(1),
        ("warning", "hold memory of GPU:0", "99% of GPU:0 by process 4321"),
        "kill 4321  # if they are yours, or wait for them to end",
    ),
    "the only GPU busy, nobody knows by whom": (
        facts(gpu(0, memory_free_bytes=GIBIBYTE)),
        gpu_evidence(1),
        ("warning", "hold memory of GPU:0", "99% of GPU:0"),
        "nvidia-smi  # names who holds it, where this process may not",
    ),
    "small /dev/shm": (
        facts(*TWO),
        gpu_evidence(shared_memory_bytes=64 << 20),
        ("warning", "Shared memory is small", "64 MiB in /dev/shm"),
        "sudo mount -o remount,size=1g /dev/shm",
    ),
    "small /dev/shm in a container": (
        facts(*TWO),
        gpu_evidence(shared_memory_bytes=64 << 20, container="/.dockerenv"),
        ("warning", "Shared memory is small", ""),
        "docker run --shm-size=1g ...",
    ),
    "few file handles": (
        facts(),
        cpu_evidence(open_files=256),
        ("warning", "may open few files", "ulimit -n is 256"),
        "ulimit -n 4096",
    ),
    "AMD": (
        facts(),
        cpu_evidence(
            amd_gpus=("", "", "", ""),
            env={"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"},
        ),
        ("warning", "and not on AMD's", "4 AMD GPUs, of which ROCm shows this process 2"),
        "pip install tensorflow-rocm -f https://repo.radeon.com/rocm/manylinux/ "
        "# in a version that is supported",
    ),
    "empty TF_CONFIG": (
        facts(),
        cpu_evidence(env={"TF_CONFIG": ""}),
        ("warning", "TF_CONFIG is empty, and plain TensorFlow fails", "TF_CONFIG=''"),
        "unset TF_CONFIG",
    ),
    "TF_CONFIG without a cluster": (
        facts(notes=("TF_CONFIG names a task but no cluster; it is taken as unset.",)),
        cpu_evidence(env={"TF_CONFIG": '{"task": {}}'}),
        ("warning", "TF_CONFIG names a task and no cluster", "TF_CONFIG='{\"task\": {}}'"),
        "unset TF_CONFIG",
    ),
    "stale TF_CONFIG": (
        facts(cluster=two_workers(addresses=("old1:2222", "old2:2222"))),
        cpu_evidence(env={"TF_CONFIG": "{...}"}),
        ("warning", "left from another host", "at old1:2222, and this host is node7"),
        "unset TF_CONFIG",
    ),
    "a name that does not resolve": (
        facts(cluster=two_workers()),
        cpu_evidence(unanswered={"node8:2222": "the host name does not resolve"}),
        ("blocked", "1 task of the cluster cannot be reached", "node8:2222 (the host name does"),
        "getent hosts node8  # it must print an address; correct the cluster or DNS",
    ),
    "a firewall": (
        facts(cluster=two_workers()),
        cpu_evidence(unanswered={"node8:2222": "no answer"}),
        ("blocked", "1 task of the cluster cannot be reached", "node8:2222 (no answer)"),
        "nc -zv node8 2222  # from here; open this port in the firewall of node8",
    ),
    "tasks not started": (
        facts(cluster=two_workers()),
        cpu_evidence(unanswered={"node8:2222": "connection refused"}),
        ("warning", "1 task of the cluster has not started", "node8:2222 (connection refused)"),
        "autostrategy run train.py  # on each of these hosts, with its own TF_CONFIG",
    ),
    "no cluster to knock at": (
        facts(),
        cpu_evidence(cluster_wanted=True),
        ("warning", "no cluster whose tasks", "neither a TF_CONFIG with a cluster nor a Slurm"),
        "srun autostrategy doctor --cluster  # or set TF_CONFIG, as for the run",
    ),
    "own port taken": (
        facts(cluster=two_workers()),
        cpu_evidence(cannot_listen="This task's own address must be free to listen on."),
        ("blocked", "cannot listen at its own address, node7:2222", "must be free"),
        "ss -ltnp 'sport = :2222'  # names the process to end",
    ),
    "TPU that cannot be opened": (
        facts(
            Device(kind="tpu", index=0, name="TPU v5e", visible_index=0),
            notes=(
                "1 TPU chips are on the PCI bus, but neither /dev/accel0 nor /dev/vfio/0 is there "
                "to open them. In a container: start it with --privileged or pass the device.",
            ),
        ),
        cpu_evidence(),
        ("blocked", "1 TPU chips are on the PCI bus", "/dev/accel0"),
        "In a container: start it with --privileged or pass the device.",
    ),
}

HEALTHY = {
    "laptop": (facts(), cpu_evidence()),
    "TF_CONFIG of a notebook": (facts(), cpu_evidence(env={"TF_CONFIG": "{}"})),
    "laptop without NVML's binding": (
        facts(notes=("NVML cannot be asked: No module named 'pynvml'. Run pip install.",)),
        cpu_evidence(),
    ),
    "mac": (facts(platform="darwin"), cpu_evidence(open_files=256)),
    "two GPUs": (facts(*TWO), gpu_evidence()),
    "CUDA of the system": (facts(*TWO), gpu_evidence(packages=PIP_HAS_NONE)),
    "CPU wheel without a GPU": (
        facts(),
        cpu_evidence(packages={"keras": "3.15.1", "tensorflow-cpu": "2.21.0"}),
    ),
    "container with two of eight GPUs": (
        facts(*TWO),
        gpu_evidence(
            container="/.dockerenv",
            env={
                "NVIDIA_VISIBLE_DEVICES": "2,3",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            },
            nvidia_cards=tuple("abcdefgh"),
        ),
    ),
    "container for a CPU": (
        facts(),
        cpu_evidence(container="/.dockerenv", env={"NVIDIA_VISIBLE_DEVICES": "void"}),
    ),
    "GPUs that Slurm gave": (
        facts(gpu(0), gpu(1, visible_index=None), visible_devices="0"),
        gpu_evidence(answer={"gpus": 1}, env={"SLURM_JOB_ID": "7"}),
    ),
    "all GPUs by number": (facts(*TWO, visible_devices="0,1"), gpu_evidence()),
    "MIG instance": (
        facts(
            gpu(0, mig="parent", visible_index=None),
            gpu(1, mig="instance", parent_index=0, visible_index=0),
            gpu(2, mig="instance", parent_index=0, visible_index=None),
            visible_devices="MIG-1",
        ),
        gpu_evidence(1),
    ),
    "WSL2": (facts(*TWO), gpu_evidence(nvidia_cards=(), device_files=("dxg",))),
    "GB10": (
        facts(gpu(0, unified_memory=True, memory_free_bytes=GIBIBYTE, compute_capability="9.0")),
        gpu_evidence(1),
    ),
    "cluster": (
        facts(*TWO, cluster=two_workers()),
        gpu_evidence(env={"TF_CONFIG": "{...}"}),
    ),
    "cluster by another network": (
        facts(cluster=two_workers(addresses=("node7-ib.lab:2222", "node8-ib.lab:2222"))),
        cpu_evidence(env={"TF_CONFIG": "{...}"}),
    ),
    "cluster by address": (
        facts(cluster=two_workers(addresses=("10.0.0.1:2222", "10.0.0.2:2222"))),
        cpu_evidence(env={"TF_CONFIG": "{...}"}),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_true_cause_is_the_first_finding_and_its_remedy_mends_it(name):
    found, evidence, (severity, what, because), remedy = BROKEN[name]

    first = diagnose(found, evidence)[0]

    assert (first.severity, first.remedy) == (severity, remedy)
    assert what in first.what
    assert because in first.evidence
    assert first.what.endswith(".")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_link_is_reported_alone(name):
    """What follows from a cause is no finding: one card, one cause."""
    found, evidence, *_ = BROKEN[name]
    blocked = [each for each in diagnose(found, evidence) if each.severity == "blocked"]

    expected = 2 if name == "nothing installed" else 1
    assert len(blocked) <= expected


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_has_no_finding(name):
    diagnosis = examine(*HEALTHY[name])

    assert diagnosis.findings == ()
    assert diagnosis.status == 0
    assert diagnosis.explain().startswith("Nothing stands between this machine and training")


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_a_recorded_machine_has_the_findings_that_its_name_says(path):
    found = Facts.from_json(path.read_text())
    gpus = sum(device.kind == "gpu" and device.mig != "parent" for device in found.host.devices)
    expected = {
        "2xgtx1080ti_old_driver": ["too old for CUDA 12"],
        "8xb200_nvswitch": ["NVIDIA B200 is newer than this TensorFlow"],
        "2_of_8xh200_by_slurm": ["CUDA_VISIBLE_DEVICES hides 6 of 8 GPUs"],
        "all_gpus_hidden": ["CUDA_VISIBLE_DEVICES hides 2 of 2 GPUs"],
        "busy_gpu": ["hold memory of GPU:1"],
        "gb10_unified": ["NVIDIA GB10 is newer than this TensorFlow"],
    }

    findings = diagnose(found, gpu_evidence(gpus) if gpus else cpu_evidence())

    words = expected.get(path.stem, [])
    assert len(findings) == len(words)
    assert all(word in finding.what for word, finding in zip(words, findings, strict=True))


def test_what_blocks_comes_before_what_warns():
    found = diagnose(
        facts(cluster=two_workers()),
        cpu_evidence(
            keras_backend=("torch", "KERAS_BACKEND"),
            open_files=10,
            unanswered={"node8:2222": "no answer", "node9:2222": "connection refused"},
        ),
    )

    assert [each.severity for each in found] == ["blocked", "blocked", "warning", "warning"]
    assert "torch" in found[0].what


def test_tasks_are_counted():
    refused = {f"node{index}:1": "connection refused" for index in (8, 9)}
    (finding,) = diagnose(facts(cluster=two_workers()), cpu_evidence(unanswered=refused))

    assert finding.what.startswith("2 tasks of the cluster have not started")


@pytest.mark.parametrize(
    ("findings", "status"),
    [("laptop", 0), ("few file handles", 1), ("another backend", 2)],
)
def test_the_status_is_that_of_the_worst_finding(findings, status):
    made = HEALTHY.get(findings) or BROKEN[findings][:2]

    assert examine(*made).status == status


def test_the_text_has_each_finding_with_a_remedy_to_copy_and_a_block_for_a_bug_report():
    text = examine(*BROKEN["TensorFlow without CUDA's packages"][:2]).explain()

    assert text.splitlines() == [
        "1. blocked              TensorFlow cannot load CUDA's libraries, which are not installed.",
        "   because              missing: libcudart.so.12, libcudnn.so.9",
        "   mend it with         pip install 'tensorflow[and-cuda]'",
        "",
        "2. warning              XLA does not find libdevice.10.bc, so jit_compile=True fails.",
        "   because              nvidia-cuda-nvcc-cu12 is not installed, and no /usr/local/cuda "
        "has it",
        "   mend it with         pip install 'nvidia-cuda-nvcc-cu12<13'",
        "",
        "For a bug report:",
        "",
        "autostrategy            0.1.0",
        "system                  Linux 6.8 x86_64, Python 3.11.9",
        "tensorflow              tensorflow 2.21.0",
        "keras                   3.15.1",
        "cores, memory           16 of 16, 64.0 GiB",
        "driver                  550.54.15, CUDA up to 12.4",
        "GPU:0                   NVIDIA A100-SXM4-80GB, compute capability 8.0",
        "GPU:1                   NVIDIA A100-SXM4-80GB, compute capability 8.0",
        "TensorFlow sees         0 GPUs",
        "strategy                mirrored on GPU:0, GPU:1",
    ]


@pytest.mark.parametrize("name", [*BROKEN, *HEALTHY])
def test_the_block_for_a_bug_report_names_no_host(name):
    found, evidence = (BROKEN.get(name) or HEALTHY[name])[:2]
    block = " ".join(examine(found, evidence).machine.values())

    assert not re.search(r"node\d|old\d|10\.0\.0", block)


def test_a_cluster_is_in_the_block_by_its_jobs():
    machine = examine(facts(cluster=two_workers()), cpu_evidence()).machine

    assert machine["cluster"] == "TF_CONFIG: worker=2; this is worker 0"
    assert machine["strategy"] == "multi_worker_mirrored on CPU:0"
