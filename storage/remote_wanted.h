/*
 * storage/remote_wanted.h - ranges of remote objects that will be read, in the order in which they
 * will be, and how they are cut into requests. Inside storage/ only: for remote_segment.c.
 *
 * Readers take small pieces of several objects in turn. So they name what they will read well
 * before they do (remote_object_will_read), and neighbours in an object become one long request.
 */
#ifndef STORAGE_REMOTE_WANTED_H
#define STORAGE_REMOTE_WANTED_H

#include <stdbool.h>
#include <stdint.h>

struct remote_object;

/* begin == end: it has become part of a request. */
struct remote_wanted {
    struct remote_object *object;
    int64_t begin, end;
};

/* Ascending by the time of reading; items before `first` are used up. */
struct remote_wanted_list {
    struct remote_wanted *items;
    int64_t first, n, room;
};

/* The longest gap between two ranges that is fetched with them, because a request of its own would
 * take longer. */
enum { REMOTE_GAP_BYTES = 64 << 10 };

/* Append a range. False: there is no memory, so it is not noted. */
bool remote_wanted_add(struct remote_wanted_list *l, struct remote_object *o, int64_t begin,
                       int64_t end);

/* Put a range that was taken before all others. */
void remote_wanted_put_back(struct remote_wanted_list *l, struct remote_object *o, int64_t begin,
                            int64_t end);

/* Forget the ranges of an object. */
void remote_wanted_forget(struct remote_wanted_list *l, const struct remote_object *o);

/* The range that is read first, or, with an object, the one that has its byte at `offset`; NULL:
 * there is none. */
struct remote_wanted *remote_wanted_next(struct remote_wanted_list *l);
struct remote_wanted *remote_wanted_find(struct remote_wanted_list *l,
                                         const struct remote_object *o, int64_t offset);

/* The longest request, at most most_bytes, such that one for each run of neighbours among the next
 * ranges takes room_bytes together. */
int64_t remote_wanted_length(const struct remote_wanted_list *l, int64_t most_bytes,
                             int64_t room_bytes);

/* A request that begins with a range of the list, and what is wanted of it. */
struct remote_wanted_request {
    int64_t begin, end, wanted_bytes;
};

/* Take a request of at most most_bytes from the list: this range and its neighbours. */
struct remote_wanted_request remote_wanted_take(struct remote_wanted_list *l,
                                                struct remote_wanted *w, int64_t most_bytes);

#endif
