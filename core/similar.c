/* core/similar.c - see core/similar.h. */
#include "core/similar.h"

#include <limits.h>
#include <string.h>

enum { LETTERS_MAX = 62, LETTERS_PER_EDIT = 3 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* The edits that make one short name of another: a letter that is inserted, removed or replaced, or
 * two neighbours that are swapped (optimal string alignment; Damerau 1964). */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][LETTERS_MAX + 1], n = (int)strlen(b);

    if (n > LETTERS_MAX)
        return INT_MAX;
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; i <= (int)strlen(a); i++) {
        const int *before = rows[(i + 1) % 3], *up = rows[(i - 1) % 3];
        int *row = rows[i % 3];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            row[j] = least(up[j - 1] + (a[i - 1] != b[j - 1]), least(up[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return rows[strlen(a) % 3][n];
}

struct similar similar_to(const char *word)
{
    return (struct similar){ .word = word, .most = INT_MAX - 1 };
}

void similar_try(struct similar *s, const char *name)
{
    const size_t n = strlen(s->word), m = strlen(name);
    const int most = (int)((n > m ? n : m) / LETTERS_PER_EDIT);
    int d;

    if (n > LETTERS_MAX || (d = edit_distance(s->word, name)) > least(most, s->most))
        return;
    s->name = name;
    s->most = d - 1;
}
