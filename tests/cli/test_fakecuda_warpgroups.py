"""Products of warpgroups and dynamic shared memory on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_warpgroups
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_warpgroups")
CORRECT = {
    "dots": "equal\n", "sum": "equal\n", "large": "no error\n", "turns": "127\n",
    "chunk": "another product\n", "early": "another product\n",  # seen in the result only
    "not-allowed": "invalid argument\n",
}
# What the report says, and the kernel or the line that it names.
MISTAKES = {
    "stride": ("wgmma: .* is not in the block's dynamic shared memory|which was never written", ""),
    "swizzle": ("wgmma: the descriptor .* has not the swizzle of 128 bytes", "wgmma_dots"),
    "no-fence": ("wgmma: there is no wgmma.fence before it", "wgmma_dots"),
    "no-proxy-fence": ("wgmma: a read of .*, which thread [0-9]+ has written, with no fence.proxy.async since", "wgmma_dots"),
    "no-barrier": ("race within a block, in shared memory|a read of .*, which was never written", ""),
    "no-wait": ("a thread ends, and has not waited for its products", ""),
    "written-in-flight": ("race within a block, in shared memory|with no fence.proxy.async since", ""),
    "divided": ("wgmma: warps 0 and 3 of a warpgroup have executed different products: 4 and 3", ""),
    "turn-and-barrier": ("threads of a block wait at different barriers", "turns_kernel"),
    "small-shared": ("a write of 2 bytes at .*, [0-9]+ bytes from the begin of 16368 of shared memory", "product_kernel"),
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
