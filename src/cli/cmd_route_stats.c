/* `understudy route-stats`: what the routers of a checkpoint do on given texts, and a routing dump for `proxy --routing`. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/texts.h"
#include "io/fs.h"
#include "io/npy.h"
#include "model/route_stats.h"

enum { WINDOW = 4096, BATCH = 1024, BATCH_STREAM = 4096, CELL = 6, PAIRS_SHOWN = 5 };

/* ---- texts in windows ---- */

typedef struct windows {
    const int64_t **at;
    size_t *n, count;
} windows;

static us_status cut(const us_ids *in, size_t window, uint64_t limit, windows *w, us_err *err) {
    size_t most = in->B, left = limit ? (size_t)limit : SIZE_MAX;
    for (size_t i = 0; i < in->B; i++) most += (in->start[i + 1] - in->start[i]) / window;
    w->at = us_calloc(most + 1, sizeof *w->at);
    w->n = us_calloc(most + 1, sizeof *w->n);
    if (!w->at || !w->n) return us_fail_nomem(err, "reading texts");
    for (size_t i = 0; i < in->B; i++)
        for (size_t p = in->start[i]; p < in->start[i + 1] && left; p += window) {
            size_t n = in->start[i + 1] - p < window ? in->start[i + 1] - p : window;
            if (n > left) n = left;
            w->at[w->count] = in->ids + p;
            w->n[w->count++] = n;
            left -= n;
        }
    return w->count ? US_OK : us_fail(err, US_E_REFUSED, "empty", "the texts hold no token");
}

/* ---- output ---- */

typedef struct pair {
    uint32_t a, b;
    uint64_t n;
} pair;

/* The pairs of a layer that are chosen together most often; returns how many. */
static size_t best_pairs(const us_route_layer *l, pair best[PAIRS_SHOWN]) {
    size_t have = 0;
    for (uint32_t i = 0; l->pairs && i < l->n_experts; i++)
        for (uint32_t j = i + 1; j < l->n_experts; j++) {
            uint64_t n = l->pairs[(size_t)i * l->n_experts + j];
            size_t at = have;
            while (at && best[at - 1].n < n) at--;
            if (!n || at == PAIRS_SHOWN) continue;
            if (have < PAIRS_SHOWN) have++;
            memmove(best + at + 1, best + at, (have - at - 1) * sizeof *best);
            best[at] = (pair){i, j, n};
        }
    return have;
}

static void put_layer_json(us_buf *b, const us_route_layer *l) {
    pair best[PAIRS_SHOWN];
    double n = l->tokens ? (double)l->tokens : 1;
    us_buf_printf(b, "{\"layer\": %u, \"tokens\": %llu, \"balance\": %.9g, \"peak_load\": %.9g, \"router_entropy\": %.9g", l->layer, (unsigned long long)l->tokens,
                  us_route_balance(l), us_route_peak(l), l->entropy / n);
    if (l->margin_least < HUGE_VAL) us_buf_printf(b, ", \"margin\": %.9g, \"margin_least\": %.9g", l->margin / n, l->margin_least);
    us_buf_z(b, ", \"load\": [");
    for (uint32_t e = 0; e < l->n_experts; e++) us_buf_printf(b, "%s%llu", e ? ", " : "", (unsigned long long)l->count[e]);
    us_buf_z(b, "], \"weight\": [");
    for (uint32_t e = 0; e < l->n_experts; e++) us_buf_printf(b, "%s%.6g", e ? ", " : "", l->weight[e]);
    us_buf_z(b, "], \"together\": [");
    size_t k = best_pairs(l, best);
    for (size_t i = 0; i < k; i++) us_buf_printf(b, "%s{\"experts\": [%u, %u], \"times\": %llu}", i ? ", " : "", best[i].a, best[i].b, (unsigned long long)best[i].n);
    us_buf_z(b, "]}");
}

static void put_json(us_buf *b, const us_route_stats *s) {
    us_buf_printf(b, "{\"tokens\": %zu, \"top_k\": %u, \"layers\": [", s->tokens, s->top_k);
    for (size_t i = 0; i < s->n_layers; i++) {
        if (i) us_buf_z(b, ",\n ");
        put_layer_json(b, &s->layers[i]);
    }
    us_buf_z(b, "]}\n");
}

static void put_table(us_buf *b, const us_route_stats *s) {
    us_buf_printf(b, "%zu tokens, %u experts a token\n\n  layer  balance  peak load  never chosen  router entropy  margin (least)       most often together\n", s->tokens, s->top_k);
    for (size_t i = 0; i < s->n_layers; i++) {
        const us_route_layer *l = &s->layers[i];
        pair best[PAIRS_SHOWN];
        double n = l->tokens ? (double)l->tokens : 1;
        unsigned never = 0;
        for (uint32_t e = 0; e < l->n_experts; e++) never += !l->count[e];
        us_buf_printf(b, "  %5u  %7.3f  %8.2fx  %5u of %4u  %14.3f  ", l->layer, us_route_balance(l), us_route_peak(l), never, l->n_experts, l->entropy / n);
        if (l->margin_least < HUGE_VAL) us_buf_printf(b, "%.4f (%.2g)", l->margin / n, l->margin_least);
        if (best_pairs(l, best)) us_buf_printf(b, "  %u+%u: %llu", best[0].a, best[0].b, (unsigned long long)best[0].n);
        us_buf_c(b, '\n');
    }
    us_buf_z(b, "\nbalance: entropy of the loads, 1 = even. peak load: busiest expert against the mean. margin: k-th router logit less the next.\n");
}

/* A heat map: a row a layer, a column an expert, darker = more of the layer's choices; a title under the pointer. */
static us_status write_svg(const char *path, const us_route_stats *s, us_err *err) {
    us_buf b = {0};
    uint32_t E = s->layers[0].n_experts;
    size_t width = 60 + (size_t)E * CELL, height = 30 + s->n_layers * CELL;
    us_buf_printf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %zu %zu\" font-family=\"sans-serif\" font-size=\"8\">\n", width, height);
    us_buf_printf(&b, "<text x=\"4\" y=\"12\">loads of %u experts (columns) in %zu layers (rows), %zu tokens; darkest = 4 times the mean or more</text>\n", E, s->n_layers, s->tokens);
    for (size_t i = 0; i < s->n_layers; i++) {
        const us_route_layer *l = &s->layers[i];
        double sum = 0;
        for (uint32_t e = 0; e < E; e++) sum += (double)l->count[e];
        us_buf_printf(&b, "<text x=\"4\" y=\"%zu\" font-size=\"5\">layer %u</text>\n", 20 + i * CELL + 5, l->layer);
        for (uint32_t e = 0; e < E; e++) {
            double share = sum > 0 ? (double)l->count[e] * E / sum : 0;
            int shade = (int)lrint(255 - 255 * fmin(share / 4, 1));
            us_buf_printf(&b, "<rect x=\"%zu\" y=\"%zu\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,255)\"><title>layer %u, expert %u: %llu</title></rect>\n", 40 + (size_t)e * CELL,
                          20 + i * CELL, CELL, CELL, shade, shade, l->layer, e, (unsigned long long)l->count[e]);
        }
    }
    us_buf_z(&b, "</svg>\n");
    us_status st = us_buf_status(&b, err, "drawing the loads");
    if (st == US_OK) st = us_fs_write_atomic(path, us_buf_view(&b), err);
    us_buf_free(&b);
    return st;
}

static us_status write_dump(const char *path, const us_route_stats *s, us_err *err) {
    us_npy a = {.name = (char *)(uintptr_t)"routed_experts", .dtype = US_DTYPE_I32, .rank = 3, .shape = {s->tokens, s->n_layers, s->top_k}, .data = s->choices};
    a.count = (uint64_t)s->tokens * s->n_layers * s->top_k;
    return us_npz_write(path, &a, 1, err);
}

static us_status run(us_cli *c, us_err *err) {
    us_ctx *ctx = us_cli_ctx(c);
    us_cli_model m = {0};
    windows w = {0};
    us_route_stats z = {0};
    us_buf b = {0};
    us_status s;
    const char *out = us_cli_string(c, "out", NULL), *svg = us_cli_string(c, "svg", NULL);
    int64_t limit = us_cli_int(c, "tokens", 0), window = us_cli_int(c, "window", 0);
    if (limit < 0 || window < 0) return us_cli_usage(c, err, "--tokens and --window must not be negative");
    US_GO(us_cli_model_open(c, &m, err));
    US_GO(us_texts_read(&m.texts, c, 1, err));
    uint64_t context = us_engine_context(m.e);
    if (!window) window = context && context < WINDOW ? (int64_t)context : WINDOW;
    US_GO(us_route_stats_create(m.e, m.st, true, &z, err));
    US_GO(cut(&m.texts.in, (size_t)window, (uint64_t)limit, &w, err));
    us_progress_begin(ctx, "routing", "tokens", limit ? (uint64_t)limit : m.texts.in.start[m.texts.in.B]);
    s = us_route_stats_run(ctx, m.e, w.at, w.n, w.count, us_cli_flag(c, "stream") ? BATCH_STREAM : BATCH, out != NULL, &z, err);
    us_progress_end(ctx);
    US_GO(s);
    if (out) US_GO(write_dump(out, &z, err));
    if (svg) US_GO(write_svg(svg, &z, err));
    if (us_cli_json(c)) put_json(&b, &z);
    else put_table(&b, &z);
    US_GO(us_buf_status(&b, err, "writing the answer"));
    fwrite(b.p, 1, b.n, us_cli_out(c));
done:
    us_buf_free(&b);
    us_free(w.at);
    us_free(w.n);
    us_route_stats_free(&z);
    us_cli_model_close(&m);
    return s;
}

static const us_option options[] = {
    {"ids", 0, US_OPT_STRING, "FILE", "Texts as token ids: .npy of integers [B, T] or JSON [[1, 2], [3]].", false},
    {"jsonl", 0, US_OPT_FLAG, NULL, "Each line of a file is {\"text\": ...}, a text of its own.", false},
    {"tokens", 't', US_OPT_INT, "N", "Stop after so many tokens (default 0: all).", false},
    {"window", 'w', US_OPT_INT, "N", "Longer texts are cut into pieces of N tokens (default: 4096, or the model's context when that is shorter).", false},
    {"out", 'o', US_OPT_STRING, "FILE.npz", "Write the choices: routed_experts [tokens, layers, k], which proxy --routing reads.", false},
    {"svg", 0, US_OPT_STRING, "FILE.svg", "Draw the loads, a row a layer, a column an expert.", false},
    US_CLI_MODEL_OPTIONS,
    {0},
};

const us_command us_cmd_route_stats = {
    .name = "route-stats",
    .summary = "What the routers of a checkpoint do on given texts",
    .usage = "CKPT [FILE...] [--ids FILE] [--out DUMP.npz] [--svg FILE.svg] [--stream] [options]",
    .description = "Runs the texts and reports for each layer with experts: loads, their balance and peak, experts never chosen, entropy of the router, margin between the last chosen "
                   "logit and the next, experts chosen together. --out keeps every choice as a routing dump.\n\nWith --stream at most one layer's weights are in memory, so a model of any size runs; "
                   "its weights are read once for every 4096 tokens.",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = run,
    .examples = "understudy route-stats Qwen/Qwen3-30B-A3B prompts.txt --out routing.npz --stream\n"
                "understudy proxy Qwen/Qwen3-30B-A3B small --experts 32 --routing routing.npz\n",
};
