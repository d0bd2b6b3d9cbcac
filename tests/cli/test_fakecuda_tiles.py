"""Tensor cores and asynchronous copies on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_tiles
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_tiles")
CORRECT = {
    "mma": "equal\n", "mma-layout": "another product\n",  # a wrong layout is seen in the result only
    "copy": "1 252 1\n", "groups": "",
}
# What the report says, and the kernel or the line that it names.
MISTAKES = {
    "mma-ended-lane": ("ldmatrix: the mask 0xffffffff has lane 5, which has ended", ""),
    "mma-no-warp-barrier": ("race within a block, in shared memory|a read of .*, which was never written", "mma_load"),
    "mma-misaligned": ("ldmatrix: the row at .* is not a multiple of 16", "mma_load"),
    "mma-global": ("ldmatrix: the row at .* is not in shared memory", "mma_load"),
    "mma-divided": ("waits for ever; thread [0-9]+ waits in mma_load", "mma_load_transposed"),
    "copy-no-wait": ("a read of .*, which (an asynchronous copy may still write|was never written)|race within a block", ""),
    "copy-no-commit": ("a read of .*, which an asynchronous copy may still write", "copy_kernel"),
    "copy-no-barrier": ("race within a block, in shared memory|a read of .*, which was never written", ""),
    "copy-wrong-group": ("a read of .*, which an asynchronous copy may still write", "groups_kernel"),
    "copy-read-in-flight": ("race within a block|a read of .*, which (an asynchronous copy may still write|was never written)", ""),
    "copy-written-in-flight": ("a write of .*, which an asynchronous copy may still write", "copy_kernel"),
    "copy-twice": ("a write of .*, which an asynchronous copy may still write", "async_copy_16"),
    "copy-still-read": ("race within a block, in shared memory|a read of .*, which was never written", ""),
    "copy-misaligned": ("cp.async from .* to .*: both must be multiples of 16", "async_copy_16"),
    "copy-to-global": ("cp.async: the target .* is not in shared memory", "async_copy_16"),
    "copy-beyond": ("a read of 16 bytes at .* is outside of every allocation", "async_copy_16"),
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
