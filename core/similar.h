/*
 * core/similar.h - the name that a mistyped word probably means.
 *
 *     struct similar s = similar_to("verfy");
 *
 *     similar_try(&s, "verify");  // for each name
 *     if (s.name) ...             // the nearest; NULL: none is similar
 *
 * A name is similar when one letter of three differs at most, and one edit inserts, removes or
 * replaces a letter, or swaps two neighbours.
 */
#ifndef CORE_SIMILAR_H
#define CORE_SIMILAR_H

struct similar {
    const char *word, *name;
    int most; /* edits that a nearer name may need */
};

/* The word must live as long as the struct. */
struct similar similar_to(const char *word);
void similar_try(struct similar *s, const char *name);

#endif
