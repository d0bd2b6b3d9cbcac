/*
 * tests/unit/comm_nccl_transport.c - collectives and messages over NCCL between ranks that each
 * have a GPU of the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: comm/cuda/exports comm/cuda/library comm/cuda/nccl_watch
 */
#include "comm/collective.h"
#include "comm/control.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "device/staging.h"
#include "kernels/cpu/vec.h"
#include "tests/unit/cuda_support.h"
#include "tests/unit/device_read.h"
#include "tests/unit/random.h"
#include "tests/unit/ranks.h"

enum { N = 70, BUFFER_BYTES = 8 * N * 8 };

/* One rank, its GPU, and two buffers in its memory. */
struct setup {
    struct comm *all;
    struct device *device;
    struct device_queue *queue;
    struct staging staging;
    void *x, *y;
    int rank, size, wrong;
};

static void setup_open(struct setup *s, struct comm_world *ranks, uint64_t seed)
{
    struct tp_err err = { 0 };

    *s = (struct setup){ .rank = control_rank(comm_control(ranks)),
                         .size = control_size(comm_control(ranks)) };
    load_cuda();
    fake->devices(s->size, 13000);
    fake->seed(seed);
    s->wrong += wrong_unless(!cuda->device_open(&s->device, s->rank, &err), err.msg);
    s->wrong +=
        wrong_unless(!device_queue_open(s->device, &s->queue, DEVICE_QUEUE_COMPUTE, &err), err.msg);
    s->wrong += wrong_unless(!staging_open(&s->staging, s->queue, BUFFER_BYTES, &err), err.msg);
    s->wrong +=
        wrong_unless(!comm_use_device(&s->all, ranks, s->device, cuda->transport, &err), err.msg);
    s->wrong += wrong_unless(!comm_alloc(&s->x, ranks, BUFFER_BYTES, &err), err.msg);
    s->wrong += wrong_unless(!comm_alloc(&s->y, ranks, BUFFER_BYTES, &err), err.msg);
    s->wrong += wrong_unless(!comm_promises(ranks, COMM_SUMS_ALONG_TREE), "a promise of NCCL");
}

static int setup_close(struct setup *s)
{
    staging_close(&s->staging);
    device_queue_close(s->queue);
    comm_free(s->all);
    device_close(s->device);
    return s->wrong;
}

/* Element i of rank r's buffer; sums over ranks are exact in every type. */
static double element(int r, int64_t i)
{
    return (double)((i % 5) * (r + 1) - 3 * r);
}

static void store(void *to, enum dtype type, int64_t i, double x)
{
    switch (type) {
    case DTYPE_F32:
        ((float *)to)[i] = (float)x;
        break;
    case DTYPE_BF16:
        ((uint16_t *)to)[i] = vec_to_bf16((float)x);
        break;
    case DTYPE_F64:
        ((double *)to)[i] = x;
        break;
    default:
        ((int64_t *)to)[i] = (int64_t)x;
    }
}

static void put(struct setup *s, void *to, enum dtype type, int64_t n)
{
    char host[BUFFER_BYTES];
    struct tp_err err = { 0 };

    for (int64_t i = 0; i < n; i++)
        store(host, type, i, element(s->rank, i));
    s->wrong +=
        wrong_unless(!staging_put(&s->staging, to, host, n * dtype_bytes(type), &err), err.msg);
}

/* Compare n elements at `from` with f(s, i). */
static void expect(struct setup *s, const void *from, enum dtype type, int64_t n,
                   double (*f)(const struct setup *s, int64_t i), const char *what)
{
    char got[BUFFER_BYTES], want[BUFFER_BYTES];
    struct tp_err err = { 0 };
    int64_t n_bytes = n * dtype_bytes(type);

    for (int64_t i = 0; i < n; i++)
        store(want, type, i, f(s, i));
    s->wrong += wrong_unless(!device_read(&s->staging, got, from, n_bytes, &err), err.msg);
    s->wrong += wrong_unless(memcmp(got, want, (size_t)n_bytes) == 0, what);
}

static double sum_of(const struct setup *s, int64_t i)
{
    double sum = 0;

    for (int r = 0; r < s->size; r++)
        sum += element(r, i);
    return sum;
}

static double max_of(const struct setup *s, int64_t i)
{
    double max = element(0, i);

    for (int r = 1; r < s->size; r++)
        max = element(r, i) > max ? element(r, i) : max;
    return max;
}

static double gathered(const struct setup *s, int64_t i)
{
    (void)s;
    return element((int)(i / N), i % N);
}

static double scattered(const struct setup *s, int64_t i)
{
    return sum_of(s, s->rank * N + i);
}

static double of_previous(const struct setup *s, int64_t i)
{
    return element((s->rank + s->size - 1) % s->size, i);
}

static double of_next(const struct setup *s, int64_t i)
{
    return element((s->rank + 1) % s->size, i);
}

static int collectives(struct comm_world *ranks, void *ctx)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I64 };
    struct setup s;

    setup_open(&s, ranks, *(uint64_t *)ctx + 7 * (uint64_t)control_rank(comm_control(ranks)));
    for (int t = 0; t < 4; t++) {
        put(&s, s.x, types[t], N);
        comm_all_reduce(s.all, s.queue, s.x, N, types[t], COMM_SUM);
        expect(&s, s.x, types[t], N, sum_of, "a sum");
        put(&s, s.x, types[t], N);
        comm_all_reduce(s.all, s.queue, s.x, N, types[t], COMM_MAX);
        expect(&s, s.x, types[t], N, max_of, "a maximum");
        put(&s, s.x, types[t], N);
        comm_all_gather(s.all, s.queue, s.y, s.x, N, types[t]);
        expect(&s, s.y, types[t], N * s.size, gathered, "what was gathered");
        put(&s, s.x, types[t], N * s.size);
        comm_reduce_scatter(s.all, s.queue, s.y, s.x, N, types[t]);
        expect(&s, s.y, types[t], N, scattered, "what was reduced and scattered");
    }
    return setup_close(&s);
}

/* All ranks send first, in both directions, then receive. */
static int messages(struct comm_world *ranks, void *ctx)
{
    struct comm_request *up = NULL, *down = NULL;
    struct tp_err err = { 0 };
    struct setup s;
    int next, previous;

    setup_open(&s, ranks, *(uint64_t *)ctx + 7 * (uint64_t)control_rank(comm_control(ranks)));
    next = (s.rank + 1) % s.size;
    previous = (s.rank + s.size - 1) % s.size;
    s.wrong += wrong_unless(!comm_request_open(&up, s.all, COMM_NEXT, &err), err.msg);
    s.wrong += wrong_unless(!comm_request_open(&down, s.all, COMM_PREVIOUS, &err), err.msg);
    comm_wait(s.all, s.queue, up); /* without a message this does nothing */
    for (int round = 0; round < 3; round++) {
        put(&s, s.x, DTYPE_F32, N);
        comm_send(s.all, s.queue, s.x, N, DTYPE_F32, next, up);
        comm_send(s.all, s.queue, s.x, N, DTYPE_F32, previous, down);
        comm_recv(s.all, s.queue, s.y, N, DTYPE_F32, previous);
        expect(&s, s.y, DTYPE_F32, N, of_previous, "a message from the previous rank");
        comm_recv(s.all, s.queue, s.y, N, DTYPE_F32, next);
        expect(&s, s.y, DTYPE_F32, N, of_next, "a message from the next rank");
        comm_wait(s.all, s.queue, up);
        comm_wait(s.all, s.queue, down);
    }
    return setup_close(&s);
}

/* On a queue beside that of collectives of the same communicator, ordered by an event. */
static int exchanges(struct comm_world *ranks, void *ctx)
{
    struct device_queue *beside = NULL;
    struct device_event *e = NULL;
    struct tp_err err = { 0 };
    struct setup s;

    setup_open(&s, ranks, *(uint64_t *)ctx + 7 * (uint64_t)control_rank(comm_control(ranks)));
    s.wrong += wrong_unless(!comm_exchange_open(s.all, &err), err.msg);
    s.wrong += wrong_unless(
        !device_queue_open(s.queue->device, &beside, DEVICE_QUEUE_EXCHANGE, &err), err.msg);
    s.wrong += wrong_unless(!device_event_open(s.queue->device, &e, &err), err.msg);
    for (int round = 0; round < 3; round++) {
        put(&s, s.x, DTYPE_F32, N);
        device_record(s.queue, e);
        device_wait(beside, e);
        comm_exchange(s.all, beside, s.y, s.x, N, DTYPE_F32);
        device_record(beside, e);
        device_wait(s.queue, e);
        comm_all_reduce(s.all, s.queue, s.x, N, DTYPE_F32, COMM_SUM);
        expect(&s, s.y, DTYPE_F32, N, of_previous, "what the previous rank exchanged");
    }
    device_event_close(e);
    device_queue_close(beside);
    return setup_close(&s);
}

/* How many rows of rank `from` are for rank `to`: often none. */
static int32_t rows_for(int from, int to)
{
    int n = (3 * from + 2 * to) % 5 - 1;

    return n > 0 ? n : 0;
}

enum { ROW = 3 }; /* floats */

/* Element i of what this rank should receive: rank r's rows for this rank follow its rows for the
 * ranks before. */
static double exchanged(const struct setup *s, int64_t i)
{
    int64_t row = i / ROW, at = 0;
    int from = 0;

    while (row >= rows_for(from, s->rank))
        row -= rows_for(from++, s->rank);
    for (int to = 0; to < s->rank; to++)
        at += rows_for(from, to);
    return element(from, (at + row) * ROW + i % ROW);
}

/* The numbers are overwritten when the call has returned: it must have read them. */
static int all_to_all(struct comm_world *ranks, void *ctx)
{
    int32_t send[9], recv[9];
    struct setup s;
    int64_t n;

    setup_open(&s, ranks, *(uint64_t *)ctx + 7 * (uint64_t)control_rank(comm_control(ranks)));
    for (int round = 0; round < 3; round++) {
        send[0] = recv[0] = 0;
        for (int r = 0; r < s.size; r++) {
            send[r + 1] = send[r] + rows_for(s.rank, r);
            recv[r + 1] = recv[r] + rows_for(r, s.rank);
        }
        put(&s, s.x, DTYPE_F32, (int64_t)send[s.size] * ROW);
        comm_all_to_all(s.all, s.queue, s.y, s.x,
                        &(struct comm_rows){ .row_bytes = ROW * (int64_t)sizeof(float),
                                             .host_send = send,
                                             .host_recv = recv,
                                             .counted = send[s.size] });
        n = (int64_t)recv[s.size] * ROW;
        memset(send, 0x7f, sizeof send);
        memset(recv, 0x7f, sizeof recv);
        expect(&s, s.y, DTYPE_F32, n, exchanged, "rows of all ranks");
    }
    return setup_close(&s);
}

/* The communicators of even and of odd ranks, in the opposite order of ranks. */
static int splits(struct comm_world *ranks, void *ctx)
{
    struct comm *half = NULL, *none = NULL;
    struct tp_err err = { 0 };
    struct setup s;

    setup_open(&s, ranks, *(uint64_t *)ctx);
    s.wrong += wrong_unless(!comm_split(&half, s.all, s.rank % 2, -s.rank, &err), err.msg);
    s.wrong += wrong_unless(!comm_split(&none, s.all, s.rank == 0 ? 0 : -1, 0, &err), err.msg);
    s.wrong += wrong_unless((none != NULL) == (s.rank == 0), "a color below 0");
    if (none)
        s.wrong += wrong_unless(comm_size(none) == 1, "a communicator of one rank");
    s.wrong += wrong_unless(comm_size(half) == (s.size + 1 - s.rank % 2) / 2, "the size");
    s.wrong += wrong_unless(comm_rank(half) == comm_size(half) - 1 - s.rank / 2, "the order");
    comm_free(none);
    comm_free(half);
    return setup_close(&s);
}

/* Rank 1 loses the network during a sum or a message, and the others wait for it: all of them end,
 * and say which GPU. */
static int network_is_lost(struct comm_world *ranks, void *ctx)
{
    bool by_message = *(bool *)ctx;
    struct comm_request *up = NULL;
    struct comm *half = NULL;
    struct tp_err err = { 0 };
    struct setup s;
    char host[8], gpu[16];

    setup_open(&s, ranks, 5);
    s.wrong += wrong_unless(!comm_split(&half, s.all, s.rank / 2, s.rank, &err), err.msg);
    s.wrong += wrong_unless(!comm_request_open(&up, s.all, COMM_NEXT, &err), err.msg);
    put(&s, s.x, DTYPE_F32, N);
    if (by_message) {
        comm_send(s.all, s.queue, s.x, N, DTYPE_F32, (s.rank + 1) % s.size, up);
        comm_recv(s.all, s.queue, s.y, N, DTYPE_F32, (s.rank + s.size - 1) % s.size);
        comm_wait(s.all, s.queue, up);
    }
    comm_all_reduce(half, s.queue, s.x, N, DTYPE_F32, COMM_SUM);
    comm_all_reduce(s.all, s.queue, s.x, N, DTYPE_F32, COMM_SUM);
    snprintf(gpu, sizeof gpu, "GPU %d: ", s.rank);
    s.wrong += wrong_unless(device_read(&s.staging, host, s.x, sizeof host, &err) == TP_E_IO,
                            "the sum of ranks without a network");
    s.wrong += wrong_unless(strstr(err.msg, gpu) && strstr(err.msg, "network error"), err.msg);
    comm_all_reduce(s.all, s.queue, s.x, N, DTYPE_F32, COMM_SUM); /* does nothing */
    s.wrong +=
        wrong_unless(comm_request_open(&up, half, COMM_NEXT, &err), "a request after the failure");
    comm_free(half);
    return setup_close(&s);
}

static void run(const char *name, int (*fn)(struct comm_world *ranks, void *ctx))
{
    struct rng r = rng_start(name);

    for (int size = 1; size <= 4; size++) {
        uint64_t seed = rng_next(&r);

        if ((fn == messages || fn == exchanges) && size == 1)
            continue;
        cr_expect_eq(run_ranks(size, 1 << 20, fn, &seed), 0, "%d ranks", size);
    }
}

Test(nccl_transport, collectives_give_the_sums_of_every_type)
{
    run("nccl/collectives", collectives);
}

Test(nccl_transport, messages_arrive_although_all_ranks_send_first)
{
    run("nccl/messages", messages);
}

Test(nccl_transport, exchanges_run_beside_collectives_of_the_same_communicator)
{
    run("nccl/exchanges", exchanges);
}

Test(nccl_transport, a_split_orders_ranks_by_their_key)
{
    run("nccl/splits", splits);
}

Test(nccl_transport, ranks_without_a_network_do_not_wait_for_ever)
{
    /* rank 1, and how many operations of NCCL it begins before: two connect it with others */
    static const char *const lost[] = { "1 3", "1 2", "1 5" };

    load_cuda();
    for (int i = 0; i < 3 && fake; i++) {
        bool by_message = i > 0;

        setenv("FAKECUDA_LOSE_NCCL", lost[i], 1);
        cr_expect_eq(run_ranks(4, 1 << 20, network_is_lost, &by_message), 0, "%s", lost[i]);
    }
}

Test(nccl_transport, all_to_all_brings_the_rows_of_every_rank)
{
    run("nccl/all_to_all", all_to_all);
}
