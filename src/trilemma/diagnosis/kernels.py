"""What a GPU kernel does, by its name: communication of every library, and the kinds of computation.

Names: NCCL src/device (``ncclDevKernel_…`` since 2.19, ``ncclKernel_…`` before, ``ncclSymk…`` symmetric since 2.27), RCCL the
same, vLLM csrc/custom_all_reduce.cuh (``cross_device_reduce_1stage``), csrc/quickreduce, SGLang sgl-kernel allreduce, PyTorch
c10d/CUDASymmetricMemoryOps.cu (``one_shot_all_reduce_kernel``, ``multimem_…``), FlashInfer and TensorRT-LLM
(``oneShotAllReduceKernel``, ``allreduce_fusion_kernel``), AITER, DeepEP, NVSHMEM, rocSHMEM, MSCCL(++), Transformer Engine's
userbuffers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Work = Literal["compute", "communication", "copy"]

_COMMUNICATION = re.compile(
    r"(?i)\b(?:nccl|rccl|mscclpp|msccl|nvshmem|rocshmem|ub_?userbuffers?|userbuffers)"
    r"|nccl(?:dev|sym)?k|nccl_?kernel|rcclkernel|mscclkernel|nvshmem|rocshmem|userbuffers_|deep_?ep::"
    r"|cross_device_reduce|quick_?reduce|(?:one|two|1|2)_?(?:shot|stage)\w{0,20}(?:reduce|gather|broadcast)"
    r"|(?:all_?reduce|reduce_?scatter|all_?gather)\w{0,20}(?:one|two|1|2)_?(?:shot|stage)|multimem_(?:one|all|reduce)"
    r"|custom_?all_?reduce|all_?reduce_?(?:fusion|kernel|prototype|lamport|rms)|(?:mnnvl|symm(?:etric)?_?mem|lamport)\w{0,20}reduce"
    r"|reduce_?scatter_?kernel|all_?gather_?kernel|all_?to_?all\w{0,20}kernel|low_?latency_?(?:dispatch|combine)"
)
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("triton", re.compile(r"^triton_(?:poi|red|per|tem)_")),
    ("attention", re.compile(
        r"(?i)flash|fmha|attention|attn|paged|mla_|unified_attn|_fwd_kernel_stage|decode_softmax|reduce_segments|"
        r"store_?(?:kv_?)?cache|reshape_and_cache")),
    ("quantise", re.compile(
        r"(?i)^(?!.*(?:gemm|gemv|matmul|_mm_|fused_?moe|attn|attention|dequant|norm|sage)).*(?:quantiz|quantis|_quant\b|_quant_|group_quant|cast_transpose"
        r"|cast_?to_?(?:fp8|mx)|mxfp8_cast|to_mx|fp8_cast|cvt_fp16_to_fp|nvfp4_cast|scaled_cast)")),
    ("moe", re.compile(r"(?i)matmul_ogs|fused_?moe|moe_|_moe|finalize_matmul|routing|expert|topk_forward|sum_bitmatrix")),
    ("gemm", re.compile(r"(?i)gemm|gemv|cijk_|cublas|nvjet|matmul|_mm_|::mm|xmma|cutlass|wmma|grouped_mm")),
    ("convolution", re.compile(r"(?i)conv(?:olve|olution|2d|1d)|cudnn::(?:cnn|engines)|winograd|implicit_con|miopen\w*conv")),
    ("normalisation", re.compile(r"(?i)layer_?norm|rms_?norm|batch_?norm|group_?norm|\bbn_|rmsnorm|norm_kernel")),
    ("multi_tensor", re.compile(r"(?i)multi_tensor_apply|foreach")),
    ("reduction", re.compile(r"(?i)reduce_kernel|::reduce|argmax|cumsum|scan_kernel|devicescan|scan_config|softmax")),
    ("position", re.compile(r"(?i)rotary|\brope")),
    ("elementwise", re.compile(r"(?i)elementwise|act_and_mul|silu|gelu|vectorized_\w*kernel|copy_kernel|fillfunctor")),
)  # fmt: skip


@lru_cache(maxsize=20_000)
def work_of(category: str, name: str) -> Work:
    """Whether an event of the GPU computes, communicates or copies; a memset counts as computing."""
    if "memcpy" in category.lower():
        return "copy"
    if "memset" in category.lower():
        return "compute"
    return "communication" if _COMMUNICATION.search(name) else "compute"


@lru_cache(maxsize=20_000)
def kind_of(category: str, name: str) -> str:
    """The kind of work by the kernel's name; "other" where it says none."""
    work = work_of(category, name)
    if work != "compute":
        return work
    if "memset" in category.lower():
        return "memset"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
