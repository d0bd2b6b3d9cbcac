/* tests/fuzz/scheduler_text.c - what Slurm's programs print, and the end of an attempt's log, which
 * has the words of the launcher and of the ranks. */
#include "orchestrator/backend/slurm/slurm_answer.h"
#include "orchestrator/watch/log_tail.h"
#include "tests/fuzz/fuzz.h"

static void check_view(char *text)
{
    struct slurm_view v;

    if (!slurm_view_read(&v, text, 1700000000))
        return;
    fuzz_must(v.state && v.reason && v.list && v.limit && v.account && v.partition && v.qos,
              "a field that is missing");
    fuzz_must(v.left >= -1, "a time below zero"); /* and no NaN */
    (void)(slurm_state_waits(v.state) + slurm_state_runs(v.state));
}

static void check_identity(const char *text)
{
    struct slurm_identity x;
    char *copy = strdup(text);

    fuzz_must(copy != NULL, "no memory");
    if (slurm_identity_read(&x, copy))
        fuzz_must(x.state && x.command, "a field that is missing");
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* a block of its own, so that a byte too far is seen */
    struct log_tail tail;
    bool flag;

    fuzz_must(text != NULL, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    log_tail_parse(&tail, text, slurm_rank_of_line);
    fuzz_must(tail.rank >= -1 && memchr(tail.line, 0, sizeof tail.line), "no line or no rank");
    fuzz_must(slurm_submitted(text) >= 0, "a job below zero");
    slurm_allocated(text, &flag);
    slurm_dependent(text, 17);
    slurm_node_state(text, &flag);
    slurm_is_unreachable(text);
    slurm_refused_step(text);
    slurm_aborted_step(text);
    slurm_lost_node(text, "n1");
    check_identity(text);
    check_view(text); /* the last one, because it changes the text */
    free(text);
    return 0;
}
