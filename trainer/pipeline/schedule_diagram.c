/* trainer/pipeline/schedule_diagram.c - see trainer/pipeline/schedule_diagram.h. */
#include "trainer/pipeline/schedule_diagram.h"

#include <string.h>

/* A backward pass takes twice as long as a forward pass, because it has twice as many matrix
 * products. */
enum { FORWARD_TICKS = 1, BACKWARD_TICKS = 2, LABEL_MAX = 48, SUMMARY_MAX = 256 };

static int64_t ticks_of(const struct schedule_op *op)
{
    return op->kind == OP_FORWARD ? FORWARD_TICKS : BACKWARD_TICKS;
}

/* "F3"; with several virtual stages "F3b"; with more than 26 of them "F3.1". */
static int label(char buf[LABEL_MAX], const struct schedule *s, const struct schedule_op *op)
{
    char kind = op->kind == OP_FORWARD ? 'F' : 'B';

    if (s->v == 1)
        return snprintf(buf, LABEL_MAX, "%c%d", kind, op->micro);
    if (s->v <= 26)
        return snprintf(buf, LABEL_MAX, "%c%d%c", kind, op->micro, 'a' + op->vstage);
    return snprintf(buf, LABEL_MAX, "%c%d.%d", kind, op->micro, op->vstage);
}

/* The columns of a tick: every label fits into one tick, with a space. */
static int tick_columns(const struct schedule *s)
{
    const struct schedule_op longest = { .micro = s->m - 1, .vstage = s->v - 1 };
    char text[LABEL_MAX];

    return label(text, s, &longest) + 1;
}

static void fill(FILE *f, char c, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        fputc(c, f);
}

static void text_row(FILE *f, const struct schedule *s, const struct schedule_replay *replay,
                     int rank)
{
    const struct schedule_rank *list = &s->ranks[rank];
    int64_t at = 0, columns = tick_columns(s);

    fprintf(f, "rank %-4d", rank);
    for (int i = 0; i < list->n_ops; i++) {
        int64_t start = replay->start[rank][i], width = ticks_of(&list->ops[i]) * columns;
        char text[LABEL_MAX];
        int n = label(text, s, &list->ops[i]);

        fill(f, '.', (start - at) * columns);
        fputs(text, f);
        fill(f, list->ops[i].kind == OP_FORWARD ? ' ' : '-', width - n - 1);
        fputc(' ', f);
        at = start + ticks_of(&list->ops[i]);
    }
    fill(f, '.', (replay->makespan - at) * columns);
    fputc('\n', f);
}

/* The line with the numbers that docs/parallelism/pipeline.md explains. Returns buf. */
static const char *summary(char buf[SUMMARY_MAX], const struct schedule *s,
                           const struct schedule_replay *replay)
{
    int most = 0;

    for (int r = 0; r < s->p; r++)
        most = s->ranks[r].n_slots > most ? s->ranks[r].n_slots : most;
    snprintf(buf, SUMMARY_MAX,
             "pp %d, vpp %d, %d microbatches: bubble %.4f of the ideal time (%lld of %lld ticks), "
             "%lld messages, at most %d passes held on a rank (%.2f of the microbatches' layers)",
             s->p, s->v, s->m, (double)(replay->makespan - replay->ideal) / (double)replay->ideal,
             (long long)(replay->makespan - replay->ideal), (long long)replay->ideal,
             (long long)replay->messages, most, (double)most / s->v);
    return buf;
}

static tp_status finish(FILE *f, struct tp_err *err)
{
    if (fflush(f) || ferror(f))
        return tp_fail_errno(err, "the picture of the schedule cannot be written");
    return TP_OK;
}

tp_status schedule_print_text(FILE *f, const struct schedule *s, struct tp_err *err)
{
    struct arena arena = { 0 };
    char line[SUMMARY_MAX];
    struct schedule_replay replay;
    tp_status st = schedule_replay(&replay, s, FORWARD_TICKS, BACKWARD_TICKS, &arena, err);

    if (st == TP_OK) {
        for (int r = 0; r < s->p; r++)
            text_row(f, s, &replay, r);
        fprintf(f, "%s\n", summary(line, s, &replay));
        st = finish(f, err);
    }
    arena_free(&arena);
    return st;
}

/* ---- SVG ---- */

enum { TICK_PX = 34, ROW_PX = 34, LEFT_PX = 70, TOP_PX = 44 };
enum { LETTER_PX = 7 }; /* of the notes: a short schedule's picture must be wide enough for them */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Forward passes are blue and backward passes green; later virtual stages are darker. */
static void svg_op(FILE *f, const struct schedule *s, const struct schedule_op *op, int64_t start,
                   int rank)
{
    int hue = op->kind == OP_FORWARD ? 212 : 145;
    int light = s->v == 1 ? 78 : 86 - 36 * op->vstage / (s->v - 1);
    int64_t x = LEFT_PX + start * TICK_PX, width = ticks_of(op) * TICK_PX;
    int y = TOP_PX + rank * ROW_PX;
    char text[LABEL_MAX];

    label(text, s, op);
    fprintf(f,
            "<g><title>rank %d: %s pass of microbatch %d, vstage %d, slot %d</title>"
            "<rect x=\"%lld\" y=\"%d\" width=\"%lld\" height=\"%d\" "
            "fill=\"hsl(%d,60%%,%d%%)\"/>"
            "<text x=\"%lld\" y=\"%d\">%s</text></g>\n",
            rank, op->kind == OP_FORWARD ? "forward" : "backward", op->micro, op->vstage, op->slot,
            (long long)x, y, (long long)(width - 1), ROW_PX - 1, hue, light,
            (long long)(x + width / 2), y + ROW_PX / 2 + 4, text + 1);
}

static void svg_row(FILE *f, const struct schedule *s, const struct schedule_replay *replay,
                    int rank)
{
    const struct schedule_rank *list = &s->ranks[rank];

    fprintf(f,
            "<text class=\"rank\" x=\"%d\" y=\"%d\">rank %d</text>"
            "<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%lld\" height=\"%d\"/>\n",
            LEFT_PX - 8, TOP_PX + rank * ROW_PX + ROW_PX / 2 + 4, rank, LEFT_PX,
            TOP_PX + rank * ROW_PX, (long long)(replay->makespan * TICK_PX - 1), ROW_PX - 1);
    for (int i = 0; i < list->n_ops; i++)
        svg_op(f, s, &list->ops[i], replay->start[rank][i], rank);
}

tp_status schedule_print_svg(FILE *f, const struct schedule *s, struct tp_err *err)
{
    struct arena arena = { 0 };
    char line[SUMMARY_MAX];
    struct schedule_replay replay;
    tp_status st = schedule_replay(&replay, s, FORWARD_TICKS, BACKWARD_TICKS, &arena, err);
    int64_t width, height;

    if (st)
        goto done;
    summary(line, s, &replay);
    width = LEFT_PX + 20 + most(replay.makespan * TICK_PX, (int64_t)strlen(line) * LETTER_PX);
    height = TOP_PX + (int64_t)s->p * ROW_PX + 44;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%lld\" "
            "viewBox=\"0 0 %lld %lld\">\n"
            "<style>text{font:12px sans-serif;text-anchor:middle;fill:#111}"
            ".rank{text-anchor:end}.note{text-anchor:start}.idle{fill:#eee}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text class=\"note\" x=\"%d\" y=\"24\">blue: forward passes, green: backward passes, "
            "by microbatch%s; grey: the bubble</text>\n",
            (long long)width, (long long)height, (long long)width, (long long)height, LEFT_PX,
            s->v > 1 ? " and vstage" : "");
    for (int r = 0; r < s->p; r++)
        svg_row(f, s, &replay, r);
    fprintf(f, "<text class=\"note\" x=\"%d\" y=\"%lld\">", LEFT_PX, (long long)(height - 16));
    fprintf(f, "%s</text>\n</svg>\n", line);
    st = finish(f, err);
done:
    arena_free(&arena);
    return st;
}
