"""What spoils timing is said in a sentence that says what to do."""

import pytest

from dllm_audit.measure.hazards import timing_hazards

HARMLESS = [
    {},
    {"cores_usable": 4, "threads": 4, "load_average_1min": 2.0, "cpu_governor": "performance"},
    {"cpu_governor": "unknown: this system does not tell"},
    {"memory_available_bytes": 10, "memory_bytes": 100, "on_battery": False, "cpu_stolen_share": 0.01},
    {"gpu_throttle_reasons": "0x0000000000000000", "gpu_other_processes": 0, "gpu_utilization_percent": 10},
    {"gpu_throttle_reasons": "0x0000000000000001"},  # it idles
    {"gpu_throttle_reasons": "unknown: nvidia-smi is not on the path", "gpu_other_processes": "unknown: no answer"},
    {"gpu_architecture": "sm_89", "gpu_kernels_built_for": "sm_80 sm_86 sm_90", "gpu_bfloat16": True},
    {"cpu_capability": "DEFAULT", "gpu": "G"},  # the CPU's kernels do not matter there
    {"gpu_mig_mode": "Disabled", "env_CUDA_LAUNCH_BLOCKING": "0", "attention_kernels": "flash, math"},
]


@pytest.mark.parametrize("facts", HARMLESS)
def test_nothing_is_said_where_nothing_spoils_timing(facts):
    assert timing_hazards(facts) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"cores_usable": 2, "threads": 3},
            "torch uses 3 threads on 2 usable cores: they take turns and every time varies. Set OMP_NUM_THREADS=2.",
        ),
        (
            {"cores_usable": 8, "cores_quota": 1.5, "threads": 8},
            "torch uses 8 threads on 1.5 usable cores, since the container grants no more: they take turns and every time "
            "varies. Set OMP_NUM_THREADS=1.",
        ),
        (
            {"cores_usable": 2, "threads": 1, "load_average_1min": 1.1},
            "Other work is running: the load average is 1.1 on 2 cores, and torch's 1 thread comes on top. Stop it; wait a "
            "minute after it has ended.",
        ),
        (
            {"cores_logical": 8, "threads": 8, "load_average_1min": 5.0},
            "Other work is running: the load average is 5 on 8 cores, and torch's 8 threads come on top. Stop it, or leave "
            "it room with OMP_NUM_THREADS=3; wait a minute after it has ended.",
        ),
        (
            {"memory_available_bytes": 4e8, "memory_bytes": 10e9},
            "Only 0.4 GB of 10.0 GB of memory are free: the system may swap while it is timed. Close other programs, or take "
            "a smaller model or fewer requests in flight.",
        ),
        (
            {"memory_available_bytes": 4e8, "memory_bytes": 90e9, "memory_quota_bytes": 10e9},
            "Only 0.4 GB of 10.0 GB of memory are free: the system may swap while it is timed. Close other programs, or take "
            "a smaller model or fewer requests in flight.",
        ),
        (
            {"cpu_governor": "powersave"},
            "The CPU frequency governor is 'powersave': clocks may change during a run. For steady ones: sudo cpupower "
            "frequency-set -g performance",
        ),
        ({"on_battery": True}, "This machine runs on its battery, which lowers clocks. Plug it in."),
        (
            {"cpu_stolen_share": 0.034},
            "A hypervisor gave 3.4% of this machine's CPU time to others since it was started. Repeat runs (--repeats 5), or "
            "use a machine of your own.",
        ),
        (
            {"cpu_capability": "DEFAULT"},
            "torch runs its plainest CPU kernels (no AVX2): times say little about other machines. Unset ATEN_CPU_CAPABILITY "
            "if it is set, or use a processor with AVX2.",
        ),
        (
            {"gpu_unused": "an NVIDIA driver is here, but torch sees none"},
            "The GPU is not used: an NVIDIA driver is here, but torch sees none. Install a CUDA build of torch that fits the "
            "driver.",
        ),
        (
            {"gpu_architecture": "sm_120", "gpu_kernels_built_for": "sm_80 sm_90"},
            "torch has no kernels for this GPU (sm_120; built for sm_80 sm_90): they are compiled while they are timed, or "
            "fail. Install a build of torch for it.",
        ),
        (
            {"gpu_bfloat16": False},
            "This GPU has no bfloat16 units, and bfloat16 is then emulated. Use --dtype float16 or float32.",
        ),
        (
            {"attention_kernels": "math"},
            "Only torch's plain attention kernel is switched on, which is slow. Do not switch flash attention off.",
        ),
        (
            {"env_CUDA_LAUNCH_BLOCKING": "1"},
            "CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel, and every time is longer. Unset it.",
        ),
        (
            {"gpu_other_processes": 1, "gpu_utilization_percent": 90},
            "1 other process uses this GPU and will share its time. End what you do not need (nvidia-smi lists it), or choose "
            "another with --device cuda:N.",
        ),
        (
            {"gpu_other_processes": "unknown: no answer", "gpu_utilization_percent": 90},
            "This GPU is busy to 90 % although nothing of ours runs yet. See nvidia-smi for what it does.",
        ),
        (
            {"gpu_throttle_reasons": "0x0000000000000024"},
            "The GPU's clocks are held down by its power limit and its temperature, by software. Let it cool, or ask who "
            "administers it; a run records clocks and power before and after.",
        ),
        (
            {"gpu_mig_mode": "Enabled"},
            "This GPU is divided (MIG): other parts of it share its memory bandwidth and power. Compare only with runs on the "
            "same division.",
        ),
    ],
)
def test_what_spoils_timing_is_said_with_what_to_do(facts, sentence):
    assert timing_hazards(facts) == [sentence]
