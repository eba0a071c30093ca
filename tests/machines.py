"""Machines as their own tools describe them: outputs made anew from facts of public logs, with the card and count they show."""

from __future__ import annotations

from dataclasses import dataclass

_RULE = "+-----------------------------------------------------------------------------------------+\n"
_LINE = "+-----------------------------------------+------------------------+----------------------+\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """``card``: its id in the catalogue, None where the catalogue has none; ``source`` of the facts in ``text``."""

    name: str
    source: str
    text: str
    card: str | None
    count: int
    gib: float | None = None


def table(
    card: str, mib: int, watts: int, count: int, *, driver: str, cuda: str, head: str = "", ecc: str = "0"
) -> str:
    """The table of nvidia-smi for machines of one kind of card."""
    version = head or f"NVIDIA-SMI {driver}             Driver Version: {driver}     CUDA Version: {cuda}"
    rows = "".join(
        f"|   {number}  {card:<26} On  |   00000000:{number + 1:02X}:00.0 Off | {ecc:>20} |\n"
        f"| N/A   {30 + number}C    P0 {watts // 10:>15}W / {watts:>4}W | {10:>7}MiB / {mib:>6}MiB |      0%      Default |\n"
        f"|                                         |                        |             Disabled |\n{_LINE}"
        for number in range(count)
    )
    return f"Sun Jun  7 08:16:57 2026\n{_RULE}| {version:<87} |\n{_LINE}{rows}\n{_RULE}| Processes:  |\n"


def _xml(card: str, mib: int, count: int, *, driver: str, more: str = "") -> str:
    gpus = "".join(
        f'<gpu id="00000000:{number + 1:02X}:00.0"><product_name>{card}</product_name><fb_memory_usage><total>{mib} MiB</total>'
        f"<free>{mib - 5} MiB</free></fb_memory_usage>{more}</gpu>"
        for number in range(count)
    )
    return (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>{driver}</driver_version><cuda_version>12.2</cuda_version><attached_gpus>{count}</attached_gpus>{gpus}"
        "</nvidia_smi_log>\n"
    )


def npu_table(name: str, count: int, *, dies: int = 1) -> str:
    """The table of npu-smi: ``count`` chips of ``dies`` a card."""
    rule = "+---------------------------+---------------+----------------------------------------------------+\n"
    rows = ""
    for number in range(count):
        watts = "-" if number % dies else "94.4"
        place = f"{number % dies:<5} {number}" if dies > 1 else "0"
        rows += (
            f"| {number // dies:<5} {name:<19} | OK            | {watts:<11} 50                0    / 0             |\n"
        )
        rows += f"| {place:<25} | 0000:{number + 16:02X}:00.0  | 0           0    / 0          3162 / 65536         |\n{rule}"
    return (
        f"{rule}| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |\n{rule}"
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
        f"| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n{rule}{rows}"
    )


_TELEGRAF = "github.com/influxdata/telegraf plugins/inputs/nvidia_smi/testdata"
_610 = "NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3"

MACHINES = (
    Machine(name="8 H100 SXM, table of 535", source="github.com/google/gvisor issue 10413", card="nvidia-h100-sxm5-80gb",
            count=8, gib=79.6, text=table("NVIDIA H100 80GB HBM3", 81559, 700, 8, driver="535.129.03", cuda="12.2")),
    Machine(name="8 B200, table of 610", source="github.com/sgl-project/sglang issue 27487", card="nvidia-b200-sxm-180gb",
            count=8, gib=179.1, text=table("NVIDIA B200", 183359, 1000, 8, driver="610.43.02", cuda="13.3", head=_610)),
    Machine(name="8 A100 40 GB, table of 580", source="github.com/bottlerocket-os/bottlerocket-core-kit pull request 834",
            card="nvidia-a100-sxm4-40gb", count=8, gib=40.0,
            text=table("NVIDIA A100-SXM4-40GB", 40960, 400, 8, driver="580.126.09", cuda="13.0")),
    Machine(name="RTX 3090, XML", source=f"{_TELEGRAF}/rtx-3090-v12.xml", card="nvidia-rtx-3090", count=1, gib=24.0,
            text=_xml("NVIDIA GeForce RTX 3090", 24576, 1, driver="525.147.05")),
    Machine(name="A10G, XML", source=f"{_TELEGRAF}/a10g.xml", card="nvidia-a10", count=1, gib=22.5,
            text=_xml("NVIDIA A10G", 23028, 1, driver="515.105.01")),
    Machine(name="4 A100 80 GB in slices, XML", source=f"{_TELEGRAF}/a100-sxm4-v12.xml", card="nvidia-a100-sxm4-80gb", count=4,
            gib=80.0, text=_xml("NVIDIA A100-SXM4-80GB", 81920, 4, driver="535.54.03",
                                more="<mig_mode><current_mig>Enabled</current_mig></mig_mode>")),
    Machine(name="RTX 4000 SFF Ada, not in the catalogue", source=f"{_TELEGRAF}/rtx-4000-sff-ada-v13.xml", card=None, count=1,
            gib=20.0, text=_xml("NVIDIA RTX 4000 SFF Ada Generation", 20475, 1, driver="595.84")),
    Machine(name="4 H200 NVL, text of -q", source="github.com/bigstack-oss/cubecos issue 312", card="nvidia-h200-nvl", count=4,
            gib=140.4, text="==============NVSMI LOG==============\n\nTimestamp                                 : Wed Jan 14\n"
            "Driver Version                            : 580.105.06\nCUDA Version                              : Not Found\n\n"
            "Attached GPUs                             : 4\n" + "".join(
                f"GPU 00000000:4{number}:00.0\n    Product Name                          : NVIDIA H200 NVL\n"
                "    MIG Mode\n        Current                           : Disabled\n"
                "    FB Memory Usage\n        Total                             : 143771 MiB\n"
                "        Free                              : 143159 MiB\n"
                for number in range(4))),
    Machine(name="8 A100 40 GB, collect_env", source="github.com/vllm-project/vllm issue 6134", card="nvidia-a100-sxm4-40gb",
            count=8, text="PyTorch version: 2.3.0+cu121\nCUDA used to build PyTorch: 12.1\nGPU models and configuration: \n"
            + "".join(f"GPU {number}: NVIDIA A100-SXM4-40GB\n" for number in range(8)) + "\nNvidia driver version: 550.54.14\n"),
    Machine(name="RTX 4070 laptop, collect_env", source="github.com/vllm-project/vllm pull request 9293", card=None, count=1,
            text="GPU models and configuration: GPU 0: NVIDIA GeForce RTX 4070 Laptop GPU\nNvidia driver version: 551.88\n"),
    Machine(name="2 RTX 4090, -L", source="nvidia-smi -L, its documented form", card="nvidia-rtx-4090", count=2,
            text="GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)\n"
            "GPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4)\n"),
    Machine(name="8 A100 80 GB, lspci", source="github.com/leptonai/gpud fabric-manager/testdata/lspci.nn.a100",
            card="nvidia-a100-sxm4-80gb", count=8, text="".join(
                f"000{number}:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
                for number in range(1, 9)) + "0101:00:00.0 Infiniband controller [0207]: Mellanox ConnectX-6 [15b3:101c]\n"),
    Machine(name="4 L40S, query", source="nvidia-smi --query-gpu, its documented form", card="nvidia-l40s", count=4, gib=45.0,
            text="index, name, memory.total [MiB], driver_version\n"
            + "".join(f"{number}, NVIDIA L40S, 46068 MiB, 550.54.15\n" for number in range(4))),
    Machine(name="RX 7900 XT, rocm-smi JSON", source="github.com/marimo-team/marimo issue 9237", card="amd-radeon-rx-7900-xt",
            count=1, gib=20.0, text='{"card0": {"GPU use (%)": "0", "VRAM Total Memory (B)": "21458059264", "Card Series": '
            '"Radeon RX 7900 XT", "Card Model": "0x744c", "GFX Version": "gfx1100"}}\n'),
    Machine(name="4 MI300X, rocm-smi table with names", source="github.com/thamada/nvidia-smi nvsim/MI300X_x4_smi.py",
            card="amd-mi300x", count=4, text="===== ROCm System Management Interface =====\n" + "".join(
                f"{number}       [0x74a1 : 0x00]       35.0°C      133.0W    NPS1, SPX       131Mhz  900Mhz  0%   auto  750.0W\n"
                "        AMD Instinct MI300X                                            \n" for number in range(4))
            + "===== End of ROCm SMI Log =====\n"),
    Machine(name="4 MI350X in two parts each, rocm-smi table", source="github.com/ROCm/rocm-systems pull request 1508",
            card="amd-mi350x", count=4, text="===== ROCm System Management Interface =====\n" + "".join(
                f"{number}       {number + 2}     0x75a0,   24959  60.0°C      319.0W    NPS1, DPX, 0        2203Mhz  1900Mhz\n"
                f"{number + 1}       {number + 3}     0x75a0,   20862  N/A         N/A       N/A, N/A, 1         N/A      N/A\n"
                for number in range(0, 8, 2)) + "===== End of ROCm SMI Log =====\n"),
    Machine(name="MI350X, amd-smi static", source="github.com/ROCm/rocm-systems pull request 2987", card="amd-mi350x", count=2,
            text="".join(f"GPU: {number}\n    ASIC:\n        MARKET_NAME: AMD Instinct MI350X\n        DEVICE_ID: 0x75a0\n"
                         "    BUS:\n        MAX_PCIE_WIDTH: 16\n    VRAM:\n        SIZE: 294896 MB\n" for number in range(2))),
    Machine(name="2 Tesla P40, table of 550", source="github.com/dphnAI/sonar issue 522", card="nvidia-tesla-p40", count=2,
            gib=24.0, text=table("Tesla P40", 24576, 250, 2, driver="550.90.07", cuda="12.4")),
    Machine(name="8 Ascend 910B2C, npu-smi", source="github.com/vllm-project/vllm-ascend issue 264", card="huawei-ascend-910b",
            count=8, gib=64.0, text=npu_table("910B2C", 8)),
    Machine(name="16 dies of an Atlas 800 A3, npu-smi", source="github.com/vllm-project/vllm-ascend issue 12980",
            card="huawei-ascend-910c", count=16, gib=64.0, text=npu_table("Ascend910", 16, dies=2)),
    Machine(name="Apple M2 Max 96 GB, sysctl", source="sysctl machdep.cpu hw.memsize, its documented form",
            card="apple-m2-max", count=1, gib=96.0,
            text="machdep.cpu.brand_string: Apple M2 Max\nhw.memsize: 103079215104\n"),
)  # fmt: skip
