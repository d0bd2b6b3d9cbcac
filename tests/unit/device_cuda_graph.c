/*
 * tests/unit/device_cuda_graph.c - graphs of the CUDA device, on the fake CUDA device in several
 * orders, or on a GPU.
 *
 * needs: libtp-cuda.so
 * covers: device/cuda/cuda_graph
 */
#include "tests/unit/cuda_support.h"
#include "tests/unit/device_cases.h"

enum { SEEDS = 8, N = 100 };

/* A second queue fills the first half of `to` after a copy, and the first queue waits for it. */
static void queue_work(struct device_queue *q, struct device_queue *other,
                       struct device_event *e[2], unsigned char *to, const unsigned char *from)
{
    device_copy(q, to, from, N);
    device_record(q, e[0]);
    device_wait(other, e[0]);
    device_fill(other, to, 7, N / 2);
    device_record(other, e[1]);
    device_wait(q, e[1]);
}

static void expect(struct device_queue *q, unsigned char *read, const unsigned char *device,
                   int first, int second)
{
    device_copy(q, read, device, N);
    cr_assert_eq(finish(q).status, TP_OK);
    cr_assert(read[0] == first && read[N / 2 - 1] == first, "%d", read[0]);
    cr_assert(read[N / 2] == second && read[N - 1] == second, "%d", read[N - 1]);
}

static void one_order(uint64_t seed)
{
    struct device *d = open_cuda(seed);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_queue *other = open_queue(d, DEVICE_QUEUE_COMM);
    struct device_event *e[2] = { open_event(d), open_event(d) };
    unsigned char *to = alloc_bytes(d, N, false), *from = alloc_bytes(d, N, true);
    unsigned char *read = alloc_bytes(d, N, true);
    struct device_graph *g;

    memset(from, 1, N);
    device_graph_begin(q);
    queue_work(q, other, e, to, from);
    g = device_graph_end(q);
    cr_assert_not_null(g);
    expect(q, read, to, 0, 0); /* recorded, not run */
    for (int i = 2; i < 5; i++) {
        memset(from, i, N);
        device_graph_launch(q, g);
        expect(q, read, to, 7, i);
    }
    device_fill(q, to, 9, N);
    expect(q, read, to, 9, 9);
    queue_work(q, other, e, to, from); /* the events serve again without a graph */
    expect(q, read, to, 7, 4);
    device_graph_close(d, g);
    device_event_close(e[0]);
    device_event_close(e[1]);
    device_queue_close(other);
    device_queue_close(q);
    device_close(d);
}

Test(device_cuda_graph, runs_again_with_what_memory_has_then)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        one_order(seed);
}

Test(device_cuda_graph, a_recording_that_the_driver_refuses_is_a_failure_of_the_device)
{
    struct device *d = open_cuda(0);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    unsigned char *to = alloc_bytes(d, N, false);
    struct tp_err err;

    if (!fake)
        return;
    setenv("FAKECUDA_NO_CAPTURE", "1", 1);
    device_graph_begin(q);
    device_fill(q, to, 1, N);
    cr_assert_null(device_graph_end(q));
    unsetenv("FAKECUDA_NO_CAPTURE");
    err = finish(q);
    cr_assert_eq(err.status, TP_E_GPU);
    cr_assert_not_null(strstr(err.msg, "recording a graph"), "%s", err.msg);
    device_graph_launch(q, NULL);
    device_graph_close(d, NULL);
    device_queue_close(q);
    device_close(d);
}

/* Nobody has to replace the GPU then. */
Test(device_cuda_graph, a_graph_without_memory_is_no_failure_of_the_gpu)
{
    struct device *d = open_cuda(0);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    unsigned char *to = alloc_bytes(d, N, false);
    struct tp_err err;

    if (!fake)
        return;
    fake->memory(N + 100);
    device_graph_begin(q);
    device_fill(q, to, 1, N);
    fake->handles_may_stay();
    cr_assert_null(device_graph_end(q));
    err = finish(q);
    cr_assert_eq(err.status, TP_E_GPU_FULL);
    cr_assert(strstr(err.msg, "GPU 0 is out of memory: recording a graph failed; "), "%s", err.msg);
    device_queue_close(q);
    device_close(d);
}

Test(device_cuda_graph, only_gpus_record)
{
    struct device *d = open_cuda(0);

    cr_assert(device_has_graphs(d));
    device_close(d);
}
