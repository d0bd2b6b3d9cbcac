"""cuBLAS's and cuBLASLt's products on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_products
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_products")
CORRECT = {"bf16": "", "f32-of-bf16": "", "epilogue": "1 algorithms, ", "epilogue-f32": "1 algorithms, ",
           "bias-by-16": "1 algorithms, "}
# What the report says.
MISTAKES = {
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
