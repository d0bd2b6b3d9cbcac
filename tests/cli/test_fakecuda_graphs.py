"""CUDA graphs on the fake CUDA device: it finds each planted mistake, and none in correct programs.

needs: fakecuda_planted_graphs
"""
import harness
import planted

PROGRAM = harness.built("fakecuda_planted_graphs")
CORRECT = {
    "replay": "recorded: host[1] = 5\nhost[1] = 11\nhost[1] = 21\n",  # nothing runs when it is recorded
    "fork": "host[1] = 11\nhost[1] = 21\n", "between-launches": "", "product": "C[1][2] = 32\n", "other-stream-goes-on": "",
}
MISTAKES = {
    "synchronise-stream": "cudaStreamSynchronize during a capture",
    "synchronise-device": "cudaDeviceSynchronize during a capture",
    "synchronise-event": "cudaEventSynchronize during a capture",
    "query-event": "cudaEventQuery during a capture",
    "allocate": "cudaMalloc during a capture",
    "allocate-pinned": "cudaHostAlloc during a capture",
    "free": "cudaFree during a capture",
    "free-pinned": "cudaFreeHost during a capture",
    "destroy-stream": "cudaStreamDestroy during a capture",
    "null-stream": "a use of the null stream during a capture",
    "begin-twice": "cudaStreamBeginCapture during a capture",
    "product-allocates": "cublasGemmEx without cublasSetWorkspace, which allocates, during a capture",
    "capture-null-stream": "cudaStreamBeginCapture: the null stream cannot capture",
    "capture-globally": "the fake device captures in the mode of one thread only",
    "event-from-before": "waits for an event that was recorded outside of the capture",
    "event-never-recorded": "waits for an event that was recorded outside of the capture",
    "event-of-an-ended-capture": "a stream waits for an event of a capture that has ended",
    "wait-of-the-host": "cudaEventSynchronize: the event was recorded in a capture",
    "not-joined": "the capture ends, and stream 2 has not joined the stream where it began",
    "ends-elsewhere": "cudaStreamEndCapture: the capture began on another stream",
    "ends-without-begin": "cudaStreamEndCapture: the stream does not capture",
    "destroyed": "cudaGraphLaunch: the graph was destroyed",
    "freed-memory": "a read of 4 bytes at .* outside of every allocation",
    "race-in-a-graph": "race between streams: .* which no event orders",
    "race-between-launches": "race between streams: .* which no event orders",
}

(test_every_planted_program_has_a_test, test_correct_programs_pass_in_every_order,
 test_a_mistake_is_found_in_every_order) = planted.tests(PROGRAM, CORRECT, MISTAKES)
