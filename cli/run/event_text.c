/* cli/run/event_text.c - see cli/run/event_text.h. */
#include "cli/run/event_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/backends.h"
#include "orchestrator/state/event.h"

static const char *text(const json_t *event, const char *name)
{
    const char *s = json_string_value(json_object_get(event, name));

    return s ? s : "";
}

static long long integer(const json_t *event, const char *name)
{
    return json_integer_value(json_object_get(event, name));
}

static bool is(const json_t *event, const char *name)
{
    return strcmp(text(event, "event"), name) == 0;
}

time_t event_time(double seconds)
{
    static const double year_10000 = 253402300800;

    return seconds > 0 && seconds < year_10000 ? (time_t)seconds : 0;
}

/* The time of day, with the day unless it is today. */
static void print_time(FILE *f, const json_t *event)
{
    const double seconds = json_number_value(json_object_get(event, "time"));
    const time_t at = event_time(seconds), now = time(NULL);
    struct tm t, today;
    char clock[32] = "-";

    if (at > 0 && localtime_r(&at, &t) && localtime_r(&now, &today))
        strftime(clock, sizeof clock,
                 t.tm_yday == today.tm_yday && t.tm_year == today.tm_year ? "%H:%M:%S"
                                                                          : "%Y-%m-%d %H:%M:%S",
                 &t);
    fprintf(f, "%s  ", clock);
}

static const char *find(const struct event_code *codes, const char *code)
{
    for (; codes && codes->name; codes++)
        if (strcmp(codes->name, code) == 0)
            return codes->meaning;
    return NULL;
}

/* The meaning of the event's result, if it has one, or of its code; a code that has none itself. */
static const char *meaning(const json_t *event)
{
    const char *result = text(event, "result");
    bool has_result = result[0] != 0;
    const char *code = has_result ? result : text(event, "event");
    const char *found = find(has_result ? event_result_codes() : event_codes(), code);

    for (const struct backend *const *b = backends(); !found && *b; b++)
        found = find(has_result ? (*b)->results : (*b)->events, code);
    return found ? found : code;
}

static void print_selected(FILE *f, const json_t *e)
{
    fprintf(f, "selected %s: %lld of %lld free ranks", text(e, "layout"), integer(e, "ranks"),
            integer(e, "free_ranks"));
    if (integer(e, "checkpoint") >= 0)
        fprintf(f, ", checkpoint %lld", integer(e, "checkpoint"));
}

static void print_reshard(FILE *f, const json_t *e)
{
    const bool converts = strcmp(text(e, "how"), "convert") == 0;

    fprintf(f, "checkpoint %lld of layout %s is %s %s", integer(e, "checkpoint"), text(e, "from"),
            converts ? "converted to" : "read directly at", text(e, "to"));
}

static void print_launch(FILE *f, const json_t *e)
{
    long long from = integer(e, "resumed_at");

    fprintf(f, "attempt %lld starts: %s, %lld rank%s", integer(e, "attempt"), text(e, "layout"),
            integer(e, "ranks"), integer(e, "ranks") == 1 ? "" : "s");
    if (from >= 0)
        fprintf(f, ", from step %lld", from);
    else if (!text(e, "checkpoints")[0])
        fputs(", from the beginning", f);
}

static void print_training(FILE *f, const json_t *e)
{
    double seconds = json_number_value(json_object_get(e, "seconds"));
    char took[CLOCK_TEXT_MAX];

    if (text(e, "message")[0])
        fputs("training", f);
    else
        fprintf(f, "every rank trains, %s after the %s", clock_format_duration(took, seconds),
                json_is_true(json_object_get(e, "after_fault")) ? "fault" : "launch");
    if (text(e, "device")[0])
        fprintf(f, "; device: %s", text(e, "device"));
}

/* "rank 3 on node b", as far as they are known; otherwise `other`. */
static void print_rank(FILE *f, const json_t *e, const char *other)
{
    const json_t *rank = json_object_get(e, "rank");

    if (!rank || json_integer_value(rank) < 0) {
        fputs(other, f);
        return;
    }
    fprintf(f, "rank %lld", (long long)json_integer_value(rank));
    if (text(e, "node")[0])
        fprintf(f, " on node %s", text(e, "node"));
}

/* A sentence that begins with what the event is about. False: the meaning of its code says it. */
static bool print_subject(FILE *f, const json_t *e)
{
    if (is(e, "launch"))
        print_launch(f, e);
    else if (is(e, "plan") && strcmp(text(e, "result"), "launch") == 0)
        print_selected(f, e);
    else if (is(e, "reshard"))
        print_reshard(f, e);
    else if (is(e, "training"))
        print_training(f, e);
    else if (is(e, "save"))
        fprintf(f, "saved step %lld", integer(e, "step"));
    else if (is(e, "rescale"))
        fprintf(f, "the next attempt has %lld rank%s", integer(e, "ranks"),
                integer(e, "ranks") == 1 ? "" : "s");
    else if (is(e, "node_lost") || is(e, "node_back"))
        fprintf(f, "node %s is %s", text(e, "node"), is(e, "node_lost") ? "lost" : "back");
    else if (is(e, "gpus_lost"))
        fprintf(f, "node %s has lost GPUs", text(e, "node"));
    else if (is(e, "rank_exit")) {
        print_rank(f, e, "the command");
        fputs(" has ended", f);
    } else if (is(e, "hang") && strcmp(text(e, "reason"), "helper_stuck") == 0) {
        fputs("a program that runs before the launch hangs", f);
    } else if (is(e, "hang")) {
        print_rank(f, e, "a rank");
        fputs(" hangs", f);
    } else if (is(e, "slow")) {
        print_rank(f, e, "a rank");
        fputs(" is slow", f);
    } else if (is(e, "slowdown"))
        fputs("steps are slow", f);
    else if (is(e, "drain"))
        fputs("the ranks are asked to save and stop", f);
    else if (is(e, "restart"))
        fputs("the job starts again", f);
    else if (is(e, "done") || is(e, "stopped") || is(e, "failed"))
        fputs(text(e, "event"), f);
    else
        return false;
    return true;
}

/* Whether every event has this field, or the sentence has said it. */
static bool is_common(const char *name)
{
    static const char *const names[] = { "time", "event",  "attempt", "layout",
                                         "step", "reason", "message", "result" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* What belongs to an event that has no sentence of its own: ", slurm job 7". A negative number
 * means that there is none, as of a checkpoint in a job that starts from the beginning. */
static void print_fields(FILE *f, const json_t *event)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)event, name, v)
    {
        if (is_common(name) || json_number_value(v) < 0 ||
            (json_is_string(v) && json_string_length(v) == 0))
            continue;
        fputs(", ", f);
        for (const char *p = name; *p; p++)
            fputc(*p == '_' ? ' ' : *p, f);
        if (json_is_string(v))
            fprintf(f, " %s", json_string_value(v));
        else if (json_is_integer(v))
            fprintf(f, " %lld", (long long)json_integer_value(v));
        else if (json_is_real(v))
            fprintf(f, " %.4g", json_real_value(v));
        else if (json_is_boolean(v))
            fprintf(f, " %s", json_is_true(v) ? "yes" : "no");
    }
}

/* The sentence, with names and messages as they are. */
static void print_sentence(FILE *f, const json_t *event)
{
    const char *message = text(event, "message");

    if (!print_subject(f, event)) {
        fprintf(f, "%.*s", (int)strcspn(meaning(event), "."), meaning(event));
        print_fields(f, event);
    }
    if (message[0])
        fprintf(f, ": %s", message);
    if (!is(event, "launch") && !is(event, "save") && !json_object_get(event, "checkpoint") &&
        integer(event, "step") >= 0 && json_object_get(event, "step"))
        fprintf(f, " (step %lld)", integer(event, "step"));
}

void event_print(FILE *f, const json_t *event)
{
    char *sentence = NULL, unit[TEXT_UNIT_MAX];
    size_t size = 0;
    FILE *memory = open_memstream(&sentence, &size);

    if (memory) {
        print_sentence(memory, event);
        fclose(memory);
    }
    print_time(f, event);
    for (const char *p = sentence ? sentence : ""; *p;) {
        int n = text_escape_unit(unit, p);

        fputs(unit, f);
        p += n ? n : 1;
    }
    fputc('\n', f);
    free(sentence);
}
