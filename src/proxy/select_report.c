/**
 * What a selection measured, for the manifest and the report. See select.h. Tests: tests/unit/test_select.c.
 */
#include "proxy/select.h"

static void list(us_buf *b, const char *key, const double *v, uint32_t n) {
    if (!v) return;
    us_buf_printf(b, ", \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) {
        bool finite = v[i] - v[i] == 0;
        us_buf_printf(b, i ? ", %.6g" : "%.6g", finite ? v[i] : -1.0);
    }
    us_buf_c(b, ']');
}

/* Share of all choices that fell on kept experts, and the largest load of any expert in means. */
static double kept_load(const us_select_block *k, const us_keep *keep, size_t block, double *largest) {
    double sum = 0;
    *largest = 0;
    for (uint32_t e = 0; e < k->n_experts; e++) *largest = k->load[e] * k->n_experts > *largest ? k->load[e] * k->n_experts : *largest;
    for (uint32_t j = 0; j < keep->n; j++) sum += k->load[us_keep_ids(keep, block)[j]];
    return sum;
}

void us_selection_json(us_buf *b, const us_selection *s, const us_structure *st, const us_keep *keep, const bool *active) {
    us_buf_printf(b, "{\"routing_rows\": %llu, \"filler_rows\": %llu, \"blocks\": {", (unsigned long long)s->tokens, (unsigned long long)s->filler);
    bool first = true;
    for (size_t i = 0; i < s->n_blocks; i++) {
        const us_select_block *k = &s->blocks[i];
        if (active && !active[i]) continue;
        us_buf_z(b, first ? "\n    " : ",\n    ");
        us_buf_json(b, us_str_z(st->blocks[i].key));
        us_buf_printf(b, ": {\"sketch\": %s, \"router\": %s, \"routing\": %s", k->has_sketch ? "true" : "false", k->has_router ? "true" : "false", k->has_routing ? "true" : "false");
        if (k->why_no_sketch) {
            us_buf_z(b, ", \"why_no_sketch\": ");
            us_buf_json(b, us_str_z(k->why_no_sketch));
        }
        if (k->n_probes) us_buf_printf(b, ", \"probes\": %u", k->n_probes);
        if (k->load) {
            double largest, kept = kept_load(k, keep, i, &largest);
            us_buf_printf(b, ", \"kept_load\": %.6g, \"largest_load\": %.6g", kept, largest);
        }
        list(b, "load", k->load, k->n_experts);
        list(b, "saliency", k->saliency, k->n_experts);
        if (k->protect) {
            bool one = false;
            us_buf_z(b, ", \"protected\": [");
            for (uint32_t e = 0; e < k->n_experts; e++) {
                if (k->protect[e]) us_buf_printf(b, one ? ", %u" : "%u", e), one = true;
            }
            us_buf_c(b, ']');
        }
        us_buf_c(b, '}');
        first = false;
    }
    us_buf_z(b, first ? "}}" : "\n  }}");
}

void us_selection_text(us_buf *b, const us_selection *s, const us_structure *st, const us_keep *keep, const bool *active) {
    double least = 2, most = -1, loudest = 0, sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n_blocks; i++) {
        const us_select_block *k = &s->blocks[i];
        if (!k->load || (active && !active[i])) continue;
        double largest, kept = kept_load(k, keep, i, &largest);
        least = kept < least ? kept : least;
        most = kept > most ? kept : most;
        loudest = largest > loudest ? largest : loudest;
        sum += kept;
        n++;
    }
    if (!n) return;
    us_buf_printf(b, "loads of the dumps, %u experts kept: they took %.1f %% of all choices (%.1f to %.1f %% by layer); the busiest expert had %.2f times the mean",
                  keep->n, 100 * sum / (double)n, 100 * least, 100 * most, loudest);
    double ceiling = st->top_k ? (double)keep->n / (double)st->top_k : 0;
    if (loudest > ceiling) us_buf_printf(b, ", which this proxy cannot show (ceiling %.2f)", ceiling);
    us_buf_c(b, '\n');
}
