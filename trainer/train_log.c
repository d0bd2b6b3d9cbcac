/* trainer/train_log.c - see trainer/train_log.h. */
#include "trainer/train_log.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBER_MAX = 32 };

/* 9 significant digits. JSON has no NaN or infinity, so they become null. */
static const char *number(char buf[NUMBER_MAX], double v)
{
    if (!isfinite(v))
        return "null";
    snprintf(buf, NUMBER_MAX, "%.9g", v);
    return buf;
}

tp_status train_log_open(FILE **out, const char *path, struct tp_err *err)
{
    FILE *f = fopen(path, "ae");

    if (!f)
        return tp_fail_errno(err, "--log %s: cannot be written", path);
    *out = f;
    return TP_OK;
}

tp_status train_log_empty(FILE *f, const char *path, struct tp_err *err)
{
    struct stat s;

    if (fstat(fileno(f), &s) == 0 && !S_ISREG(s.st_mode))
        return TP_OK; /* a pipe or a terminal */
    if (ftruncate(fileno(f), 0) != 0)
        return tp_fail_errno(err, "--log %s: cannot be emptied", path);
    return TP_OK;
}

tp_status train_log_write(FILE *f, const char *path, const struct train_log_entry *e,
                          struct tp_err *err)
{
    char loss[NUMBER_MAX], norm[NUMBER_MAX], lr[NUMBER_MAX], seconds[NUMBER_MAX];
    char rate[NUMBER_MAX], save[NUMBER_MAX], cpu[NUMBER_MAX], wait[NUMBER_MAX], hidden[NUMBER_MAX];

    fprintf(f,
            "{\"step\": %lld, \"loss\": %s, \"grad_norm\": %s, \"lr\": %s, "
            "\"tokens\": %lld, \"seconds\": %s, \"tokens_per_s\": %s, \"save_seconds\": %s, "
            "\"cpu_seconds\": %s, \"comm_wait_seconds\": %s, \"comm_hidden_seconds\": %s, "
            "\"peak_rss_bytes\": %lld, \"layout\": \"%s\"}\n",
            (long long)e->step, number(loss, e->loss), number(norm, e->grad_norm),
            number(lr, e->lr), (long long)e->tokens, number(seconds, e->seconds),
            number(rate, e->tokens_per_s), number(save, e->save_seconds),
            number(cpu, e->cpu_seconds), number(wait, e->comm_wait_seconds),
            number(hidden, e->comm_hidden_seconds), (long long)e->peak_rss_bytes, e->layout);
    if (fflush(f) != 0 || ferror(f))
        return tp_fail_errno(err, "--log %s: cannot be written", path);
    return TP_OK;
}

char *train_log_format(char buf[TRAIN_LOG_TEXT_MAX], const struct train_log_entry *e)
{
    char save[48] = "";

    if (e->save_seconds >= 0.0005)
        snprintf(save, sizeof save, "  save %.3f s", e->save_seconds);
    snprintf(buf, TRAIN_LOG_TEXT_MAX,
             "step %lld/%lld  loss %.6f  grad norm %.5f  lr %.3e  %.3f s  %.0f tokens/s%s",
             (long long)(e->step + 1), (long long)e->steps, e->loss, e->grad_norm, e->lr,
             e->seconds, e->tokens_per_s, save);
    return buf;
}
