"""cuBLAS's and cuBLASLt's products on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_products
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_products")
CORRECT = {"bf16": "", "f32-of-bf16": "", "epilogue": "1 algorithms, ", "epilogue-f32": "1 algorithms, ",
           "bias-by-16": "1 algorithms, ", "batch": "", "batch-side-by-side": "", "batch-epilogue": "1 algorithms, "}
# What the report says.
MISTAKES = {
    "batch-of-one-c": "cublasGemmStridedBatchedEx: C of products that are 1 apart in a batch overlap",
    "batch-overlap": "C of products that are 1 apart in a batch overlap",
    "batch-overlap-of-the-next-column": "C of products that are 2 apart in a batch overlap",
    "batch-too-large": "cublasGemmStridedBatchedEx: 256 bytes of B at .* are not in device memory",
    "batch-epilogue-overlap": "cublasLtMatmul: C of products that are 1 apart in a batch overlap",
    "batch-alignment": "C at .*, or one of a batch, is not a multiple of 256, for which the algorithm was chosen",
    "batch-bias-by-8": "the bias at .* is not a multiple of 16 bytes",
    "batch-bias-outside": "16 bytes of the bias at .* are not in device memory",
    "batch-counts": "cuBLASLt: 3 matrices of a batch of 2 products",
    "batch-count-of-8-bytes": "an attribute of 4 bytes is set with 8",
    "sums-in-bf16": "cublasGemmEx: cuBLAS may add parts of a bf16 C in bf16",
    "sums-in-bf16-again": "cublasGemmEx: cuBLAS may add parts of a bf16 C in bf16",
    "tf32": "cublasSetMathMode: f32 products are to be in f32, which mode 3 does not say",
    "reduction-in-place": r"add parts of a bf16 D in bf16 \(reduction schemes 3\)",
    "reduction-in-bf16": r"add parts of a bf16 D in bf16 \(reduction schemes 6\)",
    "bias-by-8": "the bias at .* is not a multiple of 16 bytes",
    "bias-by-4-f32": "the bias at .* is not a multiple of 16 bytes",
    "bias-on-the-host": "16 bytes of the bias at .* are not in device memory",
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
