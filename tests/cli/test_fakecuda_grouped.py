"""cuBLAS's products of groups on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_grouped
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_grouped")
CORRECT = {
    "products": "C[0][1][1] = 1054, C[1][1][3] = 53468\n", "event": "", "empty": "", "bf16": "", "bf16-by-4": "",
    "answers": "15 7 7 7 ",  # not supported: bf16 matrices with an f32 result; invalid values
}
# What the report says.
MISTAKES = {
    "addresses-in-pinned-memory": "the addresses of A, 16 bytes at .*, are misaligned or not in device memory",
    "addresses-on-the-stack": "the addresses of A, 16 bytes at .*, are misaligned or not in device memory",
    "addresses-beyond": "the addresses of A, 80 bytes at .*, are misaligned or not in device memory",
    "shapes-on-the-device": "the shapes and factors are in host memory, not at .* of the device",
    "scalars-on-the-device": "the shapes and factors are in host memory, not at .* of the device",
    "addresses-never-written": "a read of .*, which was never written\nfakecuda: by operation 2 of stream 1, a grouped product",
    "addresses-no-event": "race between streams: .* which no event orders",
    "addresses-overwritten": "race between streams: .* which no event orders",
    "matrix-on-the-host": "32 bytes of C at .* are not in device memory",
    "matrix-nowhere": "32 bytes of A at .* are not in device memory",
    "matrix-beyond": "32 bytes of A at .* are not in device memory",
    "misaligned": "A at .* is misaligned",
    "misaligned-16": "B at .* is not a multiple of 16 bytes, and k is 8",
    "misaligned-4": "B at .* is not a multiple of 4 bytes, and k is 6",
    "overlap": "C of product 1 and a matrix of product 0 overlap",
    "in-place": "C of product 1 and a matrix of product 0 overlap",
    "sums-in-bf16": "cuBLAS may add parts of a bf16 C in bf16",
    "undefined": "a read of .*, which was never written\nfakecuda: by operation 3 of stream 1, a grouped product",
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
