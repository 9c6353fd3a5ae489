"""A small stand-in for the module pynvml: answers are data, all else is not supported."""

from types import SimpleNamespace


class NVMLError(Exception):
    def __init__(self, value, text="error"):
        super().__init__(text)
        self.value = value


ERRORS = {
    "NVML_ERROR_NOT_SUPPORTED": (3, "Not Supported"),
    "NVML_ERROR_NO_PERMISSION": (4, "Insufficient Permissions"),
    "NVML_ERROR_DRIVER_NOT_LOADED": (9, "Driver Not Loaded"),
    "NVML_ERROR_LIBRARY_NOT_FOUND": (12, "NVML Shared Library Not Found"),
    "NVML_ERROR_FUNCTION_NOT_FOUND": (13, "Function Not Found"),
    "NVML_ERROR_GPU_IS_LOST": (15, "GPU is lost"),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (18, "Driver/library version mismatch"),
    "NVML_ERROR_UNKNOWN": (999, "Unknown Error"),
}


def error(name):
    return NVMLError(*ERRORS[name])


class FakeNvml:
    """NVML of a machine with `cards`, each a dict from a call's name to its answer.

    An answer that is an exception is raised, one that is a function is called.
    A card that is itself an exception has no handle. `system` answers calls
    that name no card.
    """

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *cards, **system):
        self._cards = cards
        self._system = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": len(cards),
            "nvmlDeviceGetHandleByIndex": self._handle,
            **system,
        }
        self.shut_down = False
        for name, (value, _) in ERRORS.items():
            setattr(self, name, value)

    def nvmlShutdown(self):
        self.shut_down = True

    def _handle(self, index):
        card = self._cards[index]
        if isinstance(card, Exception):
            raise card
        return card

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments, **keywords):
            if name in self._system:
                return give(self._system[name], *arguments, **keywords)
            card, *rest = arguments or ({},)
            if not isinstance(card, dict) or name not in card:
                raise error("NVML_ERROR_NOT_SUPPORTED")
            return give(card[name], *rest, **keywords)

        return call


def give(answer, *arguments, **keywords):
    if isinstance(answer, Exception):
        raise answer
    return answer(*arguments, **keywords) if callable(answer) else answer


def card(slot=0, **answers):
    """A healthy H100 in PCI slot `slot`, with `answers` in place of its own."""
    return {
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": f"GPU-{slot:08x}-d72c-4106-c12f-20bd9faed9f6",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=bus(slot)),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984, free=84900000000),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=7, memory=1),
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
        "nvmlDeviceGetTopologyCommonAncestor": 50,
        "nvmlDeviceGetP2PStatus": 0,
        **answers,
    }


def bus(slot):
    return f"00000000:{slot + 16:02X}:00.0"
