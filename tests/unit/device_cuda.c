/*
 * tests/unit/device_cuda.c - the CUDA device on the fake CUDA device: what every device does, in
 * several orders; failures, and what is said when there is no GPU.
 *
 * needs: libtp-cuda.so
 * covers: device/cuda/cuda_copy device/cuda/cuda_error device/cuda/cuda_memory
 *
 * covers: device/cuda/cuda_device device/cuda/cuda_event device/cuda/cuda_gpu
 *
 * covers: device/cuda/cuda_queue
 */
#include "tests/unit/cuda_support.h"
#include "tests/unit/device_cases.h"

enum { SEEDS = 8 };

#define IN_SEVERAL_ORDERS(run_case)               \
    for (uint64_t seed = 0; seed < SEEDS; seed++) \
    run_case(open_cuda(seed))

Test(device_cuda, an_event_that_was_never_recorded_is_passed)
{
    IN_SEVERAL_ORDERS(case_an_event_that_was_never_recorded_is_passed);
}

Test(device_cuda, memory_is_zeroed_copied_and_filled)
{
    IN_SEVERAL_ORDERS(case_memory_is_zeroed_copied_and_filled);
}

Test(device_cuda, rows_are_copied)
{
    IN_SEVERAL_ORDERS(case_copies_of_rows);
}

Test(device_cuda, events_order_queues)
{
    IN_SEVERAL_ORDERS(case_events_order_queues);
}

Test(device_cuda, a_failure_from_outside_is_kept)
{
    load_cuda();
    fake->handles_may_stay();
    IN_SEVERAL_ORDERS(case_a_failure_from_outside_is_kept);
}

Test(device_cuda, too_much_memory_is_refused_with_a_sentence)
{
    IN_SEVERAL_ORDERS(case_too_much_memory_is_refused_with_a_sentence);
}

Test(device_cuda, says_how_much_memory_there_is)
{
    struct device *d = open_cuda(0);
    struct tp_err err = { 0 };
    void *p = NULL;

    fake->memory(1000000);
    cr_assert_eq(device_alloc(d, &p, 400000, &err), TP_OK);
    cr_assert_eq(device_alloc(d, &p, 700000, &err), TP_E_GPU_FULL);
    cr_assert_str_eq(err.msg, "GPU 0 is out of memory: 700000 bytes of tensors do not fit; 600000 "
                              "of its 1000000 bytes are free. Use more GPUs or a smaller "
                              "microbatch; with tp-reshard, a smaller --device-mem");
    device_close(d);
}

Test(device_cuda, nothing_has_run_before_the_host_waits)
{
    int n_waiting = 0;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct device *d = open_cuda(seed);
        struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
        struct device_event *e = open_event(d);
        unsigned char *a = alloc_bytes(d, 100, false);
        struct tp_err err = { 0 };

        device_fill(q, a, 1, 100);
        device_record(q, e);
        n_waiting += fake->queued() > 0;
        cr_assert_eq(device_event_sync(e, &err), TP_OK);
        cr_assert(device_event_done(e) && fake->queued() == 0);
        device_event_close(e);
        device_queue_close(q);
        device_close(d);
    }
    cr_assert_gt(n_waiting, 0);
}

/* An error of the GPU appears later, at a wait. */
Test(device_cuda, the_first_failure_of_the_gpu_is_kept)
{
    struct device *d = open_cuda(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_event *e = open_event(d);
    unsigned char *a = alloc_bytes(d, 100, false);
    struct tp_err err = { 0 };
    void *p;

    fake->fail(700, 1);
    device_fill(q, a, 1, 100);
    device_fill(q, a, 2, 100); /* fails */
    device_fill(q, a, 3, 100);
    device_record(q, e);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(device_event_sync(e, &err), TP_E_GPU);
        cr_assert(strstr(err.msg, "GPU 0: ") && strstr(err.msg, "an illegal memory access was "
                                                                "encountered (CUDA error 700)"),
                  "%s", err.msg);
    }
    cr_assert(device_event_done(e), "nobody waits for an event for ever");
    cr_assert_eq(device_alloc(d, &p, 100, &err), TP_E_GPU);
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

static tp_status runs_on_the_host(struct device_queue *q, const void *args, struct tp_err *err)
{
    (void)q;
    (void)args;
    (void)err;
    return TP_OK;
}

Test(device_cuda, nothing_is_waited_for_when_it_is_closed_after_a_failure)
{
    struct device *d = open_cuda(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    unsigned char *p = alloc_bytes(d, 100, false);
    struct tp_err why;
    int n_queued;

    cr_assert(device_scratch(q, 100));
    for (int i = 0; i < 100; i++) /* the collectives of another rank that has ended */
        device_fill(q, p, i, 100);
    n_queued = fake->queued();
    cr_assert_gt(n_queued, 0);
    fake->handles_may_stay();
    tp_fail(&why, TP_E_IO, "a collective failed");
    device_fail(d, &why);
    device_free(d, p);
    device_queue_close(q);
    device_close(d);
    cr_assert_eq(fake->queued(), n_queued);
}

Test(device_cuda, host_functions_and_memory_of_others_are_refused)
{
    struct device *d = open_cuda(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMM);
    struct tp_err err = { 0 };

    fake->handles_may_stay();
    cr_assert_eq(device_adopt(d, &err, 4096, &err), TP_E_INTERNAL);
    device_submit(q, &(struct device_operation){ .fn = runs_on_the_host });
    err = finish(q);
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert_str_eq(err.msg, "GPU 0 cannot run a function of the host");
    device_queue_close(q);
    device_close(d);
}

/* Work that was queued before it grows uses the old memory. Growing does not wait for that work,
 * which may need messages of ranks that have not queued theirs yet. */
Test(device_cuda, scratch_is_kept_and_grows)
{
    struct device *d = open_cuda(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    void *first = device_scratch(q, 1000);

    cr_assert(first);
    cr_assert_eq(device_scratch(q, 10), first);
    device_fill(q, first, 0, 1000);
    for (int64_t n = 1001; n < 1 << 20; n *= 3) {
        void *grown = device_scratch(q, n);

        cr_assert(grown && grown != first);
        device_fill(q, first, 0, 1000);
        device_fill(q, grown, 0, n);
    }
    cr_assert_eq(finish(q).status, TP_OK);
    device_queue_close(q);
    device_close(d);
}

static void check_refusal(int n_devices, int driver, int ordinal, const char *message)
{
    struct device *d = NULL;
    struct tp_err err = { 0 };

    load_cuda();
    fake->devices(n_devices, driver);
    cr_assert_eq(cuda->device_open(&d, ordinal, &err), TP_E_NOTFOUND);
    cr_assert_str_eq(err.msg, message);
}

Test(device_cuda, says_why_there_is_no_gpu)
{
    check_refusal(0, 0, 0,
                  "no NVIDIA driver is installed on this machine, so it has no usable GPU");
    check_refusal(1, 12040, 0,
                  "the NVIDIA driver is too old: it supports CUDA 12.4, and 13.0 is needed. "
                  "Install a newer driver");
    check_refusal(0, 13000, 0, "there is no GPU 0: this machine has 0 usable GPUs, counted from 0");
    check_refusal(2, 13000, 2, "there is no GPU 2: this machine has 2 usable GPUs, counted from 0");
}
