/* orchestrator/plan/conversion.c - see orchestrator/plan/conversion.h. */
#include "orchestrator/plan/conversion.h"

#include <stdio.h>
#include <string.h>

#include "core/size.h"
#include "storage/location.h"

/* Guesses until there are measurements: bytes that ranks read for each byte that they keep (from
 * tp1 to tp2 with chunks of 4 MiB, 395 MiB were read for 293 MiB), the rate of writing relative to
 * reading, and the rate of reading in bytes per second. */
static const double READ_AGAIN = 1.35, WRITE_SHARE = 0.5, READ_GUESS = 500e6;

/* Whether both layouts have the same shards. Replicas are not stored, and sequence parallelism cuts
 * no tensor. */
static bool same_shards(const struct spec *a, const struct spec *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->vpp == b->vpp && a->ep == b->ep &&
           a->zero == b->zero && (a->zero == 0 || (a->dp == b->dp && a->cp == b->cp));
}

static bool same_axes(const struct spec *a, const struct spec *b)
{
    return same_shards(a, b) && a->dp == b->dp && a->cp == b->cp;
}

static void predict(struct conversion_plan *p, double bytes, const struct conversion_rates *r)
{
    double read = r->read > 0 ? r->read : READ_GUESS;
    double load = r->load > 0 ? r->load : read / READ_AGAIN;
    double convert = r->convert > 0 ? r->convert : 1 / (1 / read + 1 / (WRITE_SHARE * read));

    p->resume_seconds = bytes / load;
    p->convert_seconds = bytes / convert + bytes / read;
}

/* Choose the faster way, if the job file requires neither. */
static void decide_by_time(struct conversion_plan *p, const char *size)
{
    p->convert = p->convert_seconds < p->resume_seconds;
    p->reason = p->convert ? REASON_CONVERSION_FASTER : REASON_RESUME_FASTER;
    snprintf(p->message, sizeof p->message,
             "--resume reads %s at the new layout in about %.2f s; converting them first would "
             "take about %.2f s",
             size, p->resume_seconds, p->convert_seconds);
}

void conversion_decide(struct conversion_plan *out, const struct job *job, const struct spec *from,
                       const struct spec *to, int64_t bytes, const struct conversion_rates *rates)
{
    struct conversion_plan p = { .differs = job->is_tp_train ? !same_shards(from, to)
                                                             : !same_axes(from, to) };
    char size[SIZE_TEXT_MAX];

    predict(&p, (double)bytes, rates);
    size_format(size, bytes);
    if (!p.differs) {
        snprintf(p.message, sizeof p.message, "the checkpoint has this layout");
    } else if (job->reshard == JOB_RESHARD_NEVER) {
        p.reason = REASON_RESHARD_NEVER;
        snprintf(p.message, sizeof p.message,
                 "reshard is never: the command has to read %s of another layout", size);
    } else if (location_is_remote(job->ckpt)) {
        p.reason = REASON_STORE_NOT_CONVERTED;
        snprintf(
            p.message, sizeof p.message,
            "--resume reads %s from the store at the new layout; a step there is not converted "
            "in place",
            size);
    } else if (job->reshard == JOB_RESHARD_ALWAYS) {
        p.convert = true;
        p.reason = REASON_RESHARD_ALWAYS;
        snprintf(p.message, sizeof p.message, "reshard is always");
    } else if (!job->is_tp_train) {
        p.convert = true;
        p.reason = REASON_OWN_LAYOUT_ONLY;
        snprintf(
            p.message, sizeof p.message,
            "the command is not tp-train, and only tp-train reads checkpoints of other layouts");
    } else {
        decide_by_time(&p, size);
    }
    *out = p;
}

char *conversion_spec(char buf[CONVERSION_SPEC_MAX], const struct spec *s)
{
    snprintf(buf, CONVERSION_SPEC_MAX, "tp%dpp%dvpp%ddp%dcp%dep%dzero%d%s", s->tp, s->pp, s->vpp,
             s->dp, s->cp, s->ep, s->zero, s->sp ? "sp" : "");
    return buf;
}
