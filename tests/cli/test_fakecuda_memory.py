"""cudaFree and cudaFreeAsync on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_memory
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_memory")
CORRECT = {"free-waits": "", "free-after-a-wait": "", "free-in-order": "", "free-in-order-of-malloc": "", "free-null": "0 1 ",
           "memory-returns": "16777216 bytes "}
# What the report says: of a use that came before the free, or of one that comes after it.
EITHER = "%s of memory in use: a write of .* may come later|a write of 4 bytes at .* outside of every allocation"
MISTAKES = {
    "free-without-a-wait": EITHER % "cudaFree", "free-after-half-a-wait": EITHER % "cudaFree",
    "free-without-order": EITHER % "cudaFreeAsync", "free-without-order-of-malloc": EITHER % "cudaFreeAsync",
    "used-later": "a write of 4 bytes at .* outside of every allocation", "used-later-elsewhere": EITHER % "cudaFreeAsync",
    "free-async-twice": "cudaFreeAsync of .*, which cudaFreeAsync frees|cudaFreeAsync of .*, which is not device memory",
    "free-both": "cudaFree of .*, which cudaFreeAsync frees|cudaFree of .*, which is not device memory",
    "free-async-pinned": "cudaFreeAsync of .*, which is not device memory",
    "free-async-inside": "cudaFreeAsync of .*, which is not device memory",
    "free-async-in-a-capture": "cudaFreeAsync during a capture",
    "no-stream": "cudaFreeAsync: the stream does not exist",
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
