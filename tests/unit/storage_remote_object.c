/* tests/unit/storage_remote_object.c - readers that share the room for segments, when requests fail
 * or objects are closed. Nothing answers at the address of the objects.
 *
 * covers: storage/remote_segment
 */
#include "storage/remote_object.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "storage/remote_segment.h"

enum { ROOM = 256 << 10 }; /* of one segment, the shortest */

static struct remote_segments *s;

static void start(void)
{
    const struct remote_settings settings = { .timeout_s = 0.3 };

    remote_configure(&settings);
    s = remote_segments_of_process();
    s->limit = ROOM;
}

TestSuite(remote_object, .init = start);

static struct remote_object *make_object(void)
{
    struct remote_object *o = calloc(1, sizeof *o);

    cr_assert_not_null(o);
    strcpy(o->path, "http://127.0.0.1:9/a");
    o->size = 4 * ROOM;
    s->n_objects++;
    return o;
}

/* A thread that reads the first byte, which fails. */
static void *read_byte(void *ctx)
{
    struct tp_err err = { 0 };
    char byte;

    cr_expect_eq(remote_object_read(ctx, 0, &byte, 1, &err), TP_E_IO);
    return NULL;
}

static void *close_object(void *ctx)
{
    remote_object_close(ctx);
    return NULL;
}

static void start_thread(pthread_t *thread, void *(*run)(void *ctx), void *ctx)
{
    cr_assert_eq(pthread_create(thread, NULL, run, ctx), 0);
    usleep(100000); /* until it waits */
}

/* A segment that is not fetched, and fills the room. */
static struct remote_segment *fill(struct remote_object *o)
{
    struct remote_segment *g;

    cr_assert(remote_segments_put(s, o, 2 * ROOM, ROOM, calloc(1, ROOM)));
    g = remote_segments_find(s, o, 2 * ROOM);
    cr_assert_not_null(g);
    return g;
}

Test(remote_object, a_reader_that_waits_for_room_goes_on_when_the_request_of_another_fails,
     .timeout = 60)
{
    struct remote_object *a = make_object(), *b = make_object();
    struct remote_segment *g = fill(a);
    pthread_t first, second;

    g->users = 1;
    start_thread(&first, read_byte, a); /* waits for room before the second one waits for a reply */
    pthread_mutex_lock(&s->lock);
    g->users = 0;
    remote_segments_remove(s, g);
    pthread_mutex_unlock(&s->lock);
    start_thread(&second, read_byte, b);
    pthread_join(second, NULL);
    pthread_join(first, NULL);
    remote_object_close(a);
    remote_object_close(b);
}

Test(remote_object, nothing_is_wanted_of_an_object_that_was_closed, .timeout = 60)
{
    struct remote_object *a = make_object(), *b = make_object();
    struct remote_segment *g = fill(a);
    pthread_t closer;

    cr_assert(remote_wanted_add(&s->wanted, b, 0, 1) && remote_wanted_add(&s->wanted, b, 2, 3));
    s->wanted.first = 1; /* as if the first had been taken */
    g->state = SEGMENT_LOADING;
    g->wanted = ROOM;
    start_thread(&closer, close_object, a);
    pthread_mutex_lock(&s->lock);
    g->state = SEGMENT_READY; /* and before the closer sees that, another reader needs the room */
    cr_assert_not_null(remote_segments_add(s, b, ROOM, ROOM, false));
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->lock);
    pthread_join(closer, NULL);
    pthread_mutex_lock(&s->lock);
    for (int64_t i = s->wanted.first; i < s->wanted.n; i++)
        cr_expect_eq(s->wanted.items[i].object, b, "a range of a closed object is wanted");
    pthread_mutex_unlock(&s->lock);
    remote_object_close(b);
}

/* A checkpoint of thousands of ranks: all objects are open, and each has a segment. A read that
 * compared them all with each other, or a hint that looked at all, would take five times as long.
 */
Test(remote_object, thousands_of_objects_are_read_in_a_moment, .timeout = 120)
{
    enum { OBJECTS = 2000, BYTES = 4096, HINTS = 1000000 };
    const double begin = clock_cpu_seconds();
    struct remote_object **o = calloc(OBJECTS, sizeof *o);
    struct tp_err err = { 0 };
    char byte;

    cr_assert_not_null(o);
    s->limit = OBJECTS * BYTES + ROOM;
    for (int i = 0; i < OBJECTS; i++) {
        o[i] = make_object();
        o[i]->size = BYTES;
        cr_assert(remote_segments_put(s, o[i], 0, BYTES, calloc(1, BYTES)));
        remote_segments_find(s, o[i], 0)->exact = false; /* so what follows may be fetched */
    }
    for (int i = 0; i < OBJECTS; i++)
        cr_assert_eq(remote_object_read(o[i], 0, &byte, 1, &err), TP_OK, "%s", err.msg);
    o[0]->size = BYTES + HINTS;
    s->n_threads = remote_connections(); /* as if all were busy */
    for (int i = 0; i < HINTS; i++)
        remote_object_will_read(o[0], BYTES + i, 1);
    s->n_threads = 0;
    for (int i = 0; i < OBJECTS; i++)
        remote_object_close(o[i]);
    free(o);
    cr_expect_lt(clock_cpu_seconds() - begin, 4, "%.1f s", clock_cpu_seconds() - begin);
}
