/* reshard/formats/pieces/piece_place.c - see reshard/formats/pieces/piece_place.h. */
#include "reshard/formats/pieces/piece_place.h"

int64_t piece_place_spans(const struct piece_place *p, const struct box *run)
{
    return p->transposed ? run->len[1] : p->row_bytes ? run->len[0] : 1;
}

static struct piece_span transposed_span(const struct piece_place *p, const struct box *run,
                                         int64_t i, int elem)
{
    const int64_t at = (run->lo[1] + i - p->box.lo[1]) * p->box.len[0] + run->lo[0] - p->box.lo[0];

    return (struct piece_span){ p->begin + at * elem, run->len[0], i, run->len[1] };
}

struct piece_span piece_place_span(const struct piece_place *p, const struct box *run, int64_t i,
                                   int elem)
{
    const int64_t first = box_offset_in(&p->box, run), n = box_elements(run);

    if (p->transposed)
        return transposed_span(p, run, i, elem);
    if (p->row_bytes) {
        const int64_t row = box_elements(&p->box) / p->box.len[0], part = n / run->len[0];

        return (struct piece_span){
            p->begin + (first / row + i) * p->row_bytes + first % row * elem, part, i * part, 1
        };
    }
    return (struct piece_span){ p->begin + first * elem, n, 0, 1 };
}

int64_t piece_place_end(const struct piece_place *p, int elem)
{
    const int64_t bytes = box_elements(&p->box) * elem;

    if (!p->row_bytes)
        return p->begin + bytes;
    return p->begin + (p->box.len[0] - 1) * p->row_bytes + bytes / p->box.len[0];
}
