/* core/similar.c - see core/similar.h. */
#include "core/similar.h"

#include <string.h>

/* Edit distance of two short names (Levenshtein 1966). */
static int edit_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);

    if (n > 62)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int up = row[j], best = diagonal + (*a != b[j - 1]);

            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[n];
}

struct similar similar_to(const char *word)
{
    size_t n = strlen(word);

    return (struct similar){ .word = word, .most = n < 4 ? 1 : n < 7 ? 2 : 3 };
}

void similar_try(struct similar *s, const char *name)
{
    int d = edit_distance(s->word, name);

    if (d > s->most || d >= (int)strlen(name))
        return;
    s->name = name;
    s->most = d - 1;
}
