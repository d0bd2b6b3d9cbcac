/* tests/fuzz/heartbeat.c - the files of two ranks, which programs of others write too. The input is
 * what the ranks report in turns, a status of HEARTBEAT_BYTES each; the rest of the input follows
 * it in the file, as the history of losses. The watcher judges all of it. */
#include "core/heartbeat.h"
#include "orchestrator/watch/monitor.h"
#include "tests/fuzz/fuzz.h"

enum { LOSSES = 64, RANKS = 2, REPORTS = 64 };
static const int64_t second = 1000000000;

static void add_losses(struct monitor *m, int fd, const struct heartbeat_status *status)
{
    struct heartbeat_loss losses[LOSSES];
    const int n = heartbeat_losses(losses, LOSSES, fd, status, monitor_last_loss_step(m));

    fuzz_must(n >= 0 && n <= LOSSES, "too many losses");
    for (int i = 0; i < n; i++) {
        fuzz_must(losses[i].step <= status->step && (i == 0 || losses[i - 1].step < losses[i].step),
                  "losses out of order");
        monitor_add_loss(m, losses[i].step, losses[i].loss);
    }
}

/* A rank writes its file, and the watcher reads it. */
static void report(struct monitor *m, int64_t rank, const uint8_t *data, size_t size, int64_t now)
{
    static const char magic[8] = "TPSLOT\0\1";
    static unsigned char file[1 << 15];
    struct heartbeat_status status;
    struct tp_err err = { 0 };
    tp_status st;
    int fd;

    size = size < sizeof file ? size : sizeof file;
    memcpy(file, data, size);
    memcpy(file, magic, sizeof magic);
    memcpy(file + sizeof magic, &rank, sizeof rank);
    fuzz_write("rank", file, size);
    fd = open(fuzz_path("rank"), O_RDONLY | O_CLOEXEC);
    fuzz_must(fd >= 0, "the file is not there");
    st = heartbeat_read(&status, fd, (int)rank, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK) {
        heartbeat_phase_name(status.phase);
        monitor_feed(m, (int)rank, &status, 'R', now);
        add_losses(m, fd, &status);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct monitor_limits limits = { .floor_ns = second,
                                           .init_ns = 60 * second,
                                           .save_ns = 60 * second,
                                           .factor = 4,
                                           .slow = 1.5,
                                           .jump = 5,
                                           .slow_steps = 2 };
    struct monitor *m = monitor_new(RANKS, &limits, second);
    int64_t now = second;

    fuzz_must(m != NULL, "no memory");
    for (int i = 0; i < REPORTS && size >= HEARTBEAT_BYTES; i++) {
        struct monitor_verdict verdict;

        report(m, i % RANKS, data, size, now);
        data += HEARTBEAT_BYTES;
        size -= HEARTBEAT_BYTES;
        now += second / 4;
        monitor_judge(m, &verdict, now);
        fuzz_must(verdict.rank >= -1 && verdict.rank < RANKS &&
                      memchr(verdict.text, 0, sizeof verdict.text),
                  "a verdict on no rank");
    }
    monitor_free(m);
    return 0;
}
