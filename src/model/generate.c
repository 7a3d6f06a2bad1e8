/* See generate.h. */
#include "model/generate.h"

#include <string.h>

#include "base/alloc.h"
#include "io/fs.h"
#include "model/config.h"

enum { BATCH = 32, CONFIG_BYTES_MAX = 1 << 24 };

/* One sequence that runs. */
typedef struct lane {
    us_seq *seq; /* NULL: free */
    size_t text;
    uint32_t *prompt, *output; /* as the sampler wants its past */
    size_t n_output;
    int64_t last;
} lane;

typedef struct run_state {
    us_ctx *ctx;
    us_engine *e;
    const us_generate_options *o;
    const us_prompt *prompts;
    us_generated *out;
    us_token_fn *on_token;
    void *user;
    lane *lanes;
    size_t n_lanes, next, n; /* next prompt to start; prompts */
    us_segment *segs;
    size_t *lane_of;         /* of every segment */
    us_sampler **samplers;   /* one a thread */
    float *logits;
    us_status *status;       /* of every segment's draw */
    us_err *errs;
    size_t V, n_segs;
} run_state;

void us_generated_free(us_generated *g) {
    us_free(g->ids);
    us_free(g->tokens);
    us_free(g->top);
    memset(g, 0, sizeof *g);
}

static us_status check_prompts(const run_state *r, us_err *err) {
    uint64_t limit = us_engine_context(r->e);
    US_TRY(us_sampling_check(&r->o->sampling, r->V, err));
    if (r->o->n_top > US_SAMPLE_TOP_MAX) return us_fail(err, US_E_INVAL, "range", "at most %d candidates a token", US_SAMPLE_TOP_MAX);
    for (size_t i = 0; i < r->n; i++) {
        us_status s = US_OK;
        const us_prompt *p = &r->prompts[i];
        if (!p->n) s = us_fail(err, US_E_INVAL, "empty", "a prompt needs at least one token");
        for (size_t t = 0; s == US_OK && t < p->n; t++)
            if (p->ids[t] < 0 || (uint64_t)p->ids[t] >= r->V)
                s = us_fail(err, US_E_REFUSED, "token-range", "token %zu is %lld, the vocabulary has 0 to %zu", t, (long long)p->ids[t], r->V - 1);
        if (s == US_OK && limit && (p->n > limit || r->o->max_new > limit - p->n)) {
            s = us_fail(err, US_E_REFUSED, "context", "a prompt of %zu tokens and %zu new ones are longer than the model's context of %llu", p->n, r->o->max_new,
                        (unsigned long long)limit);
            us_err_todo(err, "shorten the prompt or ask for fewer new tokens");
        }
        if (s != US_OK) return us_err_where(err, "prompt %zu", i);
    }
    return US_OK;
}

static us_status start(run_state *r, lane *l, us_err *err) {
    size_t i = r->next++;
    const us_prompt *p = &r->prompts[i];
    us_generated *g = &r->out[i];
    *l = (lane){.text = i};
    g->n = g->n_prompt = p->n;
    g->n_top = r->o->n_top < r->V ? r->o->n_top : r->V;
    g->ids = us_calloc(p->n + r->o->max_new, sizeof *g->ids);
    g->tokens = us_calloc(r->o->max_new + 1, sizeof *g->tokens);
    if (g->n_top) g->top = us_calloc(r->o->max_new * g->n_top + 1, sizeof *g->top);
    l->prompt = us_calloc(p->n, sizeof *l->prompt);
    l->output = us_calloc(r->o->max_new + 1, sizeof *l->output);
    if (!g->ids || !g->tokens || (g->n_top && !g->top) || !l->prompt || !l->output) return us_fail_nomem(err, "starting a text");
    memcpy(g->ids, p->ids, p->n * sizeof *p->ids);
    for (size_t t = 0; t < p->n; t++) l->prompt[t] = (uint32_t)p->ids[t];
    return us_seq_create(r->e, &l->seq, err);
}

static void end(lane *l) {
    us_seq_free(l->seq);
    us_free(l->prompt);
    us_free(l->output);
    *l = (lane){0};
}

static void draw_one(void *arg, int64_t i, int thread) {
    run_state *r = arg;
    lane *l = &r->lanes[r->lane_of[i]];
    us_generated *g = &r->out[l->text];
    us_sample_past past = {l->prompt, l->output, g->n_prompt, l->n_output};
    us_sample_key key = {r->o->seed, l->text, g->n};
    us_sample_top *top = g->top ? g->top + l->n_output * g->n_top : NULL;
    r->status[i] = us_sample_next(r->samplers[thread], &r->o->sampling, &past, r->logits + (size_t)i * r->V, key, &g->tokens[l->n_output], top, g->n_top, &r->errs[i]);
}

static bool is_stop(const us_generate_options *o, uint32_t id) {
    for (size_t i = 0; i < o->n_stop; i++)
        if (o->stop[i] == id) return true;
    return false;
}

/* Append what was drawn for segment i. */
static us_status take(run_state *r, size_t i, us_err *err) {
    lane *l = &r->lanes[r->lane_of[i]];
    us_generated *g = &r->out[l->text];
    if (r->status[i] != US_OK) {
        *err = r->errs[i];
        us_err_where(err, "prompt %zu, position %zu", l->text, g->n);
        return r->status[i];
    }
    const us_sampled *t = &g->tokens[l->n_output];
    l->output[l->n_output++] = t->id;
    g->ids[g->n++] = l->last = t->id;
    bool stop = is_stop(r->o, t->id);
    g->finish = stop ? US_FINISH_STOP : US_FINISH_LENGTH;
    us_progress_add(r->ctx, 1);
    us_status s = r->on_token ? r->on_token(r->user, l->text, t, err) : US_OK;
    if (stop || l->n_output == r->o->max_new) end(l);
    return s;
}

/* Start what has room, run one step of all lanes, draw. */
static us_status step(run_state *r, us_err *err) {
    US_TRY(us_ctx_check(r->ctx, err));
    r->n_segs = 0;
    for (size_t k = 0; k < r->n_lanes; k++) {
        lane *l = &r->lanes[k];
        bool fresh = !l->seq && r->next < r->n;
        if (fresh) US_TRY(start(r, l, err));
        if (!l->seq) continue;
        const us_generated *g = &r->out[l->text];
        r->segs[r->n_segs] = (us_segment){l->seq, fresh ? g->ids : &l->last, fresh ? g->n_prompt : 1, 1};
        r->lane_of[r->n_segs++] = k;
    }
    US_TRY(us_engine_run(r->e, r->segs, r->n_segs, NULL, r->logits, err));
    us_pool_run(us_ctx_pool(r->ctx), draw_one, r, (int64_t)r->n_segs);
    for (size_t i = 0; i < r->n_segs; i++) US_TRY(take(r, i, err));
    return US_OK;
}

static bool any_left(const run_state *r) {
    for (size_t k = 0; k < r->n_lanes; k++)
        if (r->lanes[k].seq) return true;
    return r->next < r->n;
}

/* Nothing to draw: the answers are the prompts. */
static us_status copy_prompts(run_state *r, us_err *err) {
    while (r->next < r->n) {
        lane l = {0};
        us_status s = start(r, &l, err);
        end(&l);
        if (s != US_OK) return s;
    }
    return US_OK;
}

us_status us_generate(us_ctx *ctx, us_engine *e, const us_generate_options *o, const us_prompt *prompts, size_t n, us_token_fn *on_token, void *user, us_generated *out,
                      us_err *err) {
    us_status s = US_OK;
    int threads = us_pool_threads(us_ctx_pool(ctx));
    run_state r = {.ctx = ctx, .e = e, .o = o, .prompts = prompts, .out = out, .on_token = on_token, .user = user, .n = n, .V = us_engine_recipe(e)->V};
    memset(out, 0, n * sizeof *out);
    US_TRY(check_prompts(&r, err));
    r.n_lanes = o->batch ? o->batch : BATCH;
    if (r.n_lanes > n) r.n_lanes = n;
    r.lanes = us_calloc(r.n_lanes + 1, sizeof *r.lanes);
    r.segs = us_calloc(r.n_lanes + 1, sizeof *r.segs);
    r.lane_of = us_calloc(r.n_lanes + 1, sizeof *r.lane_of);
    r.status = us_calloc(r.n_lanes + 1, sizeof *r.status);
    r.errs = us_calloc(r.n_lanes + 1, sizeof *r.errs);
    r.logits = us_calloc(r.n_lanes * r.V + 1, sizeof *r.logits);
    r.samplers = us_calloc((size_t)threads, sizeof *r.samplers);
    if (!r.lanes || !r.segs || !r.lane_of || !r.status || !r.errs || !r.logits || !r.samplers) s = us_fail_nomem(err, "generating");
    for (int i = 0; s == US_OK && i < threads; i++) s = us_sampler_create(r.V, &r.samplers[i], err);
    us_progress_begin(ctx, "generating", "tokens", (uint64_t)n * o->max_new);
    if (s == US_OK && !o->max_new) s = copy_prompts(&r, err);
    while (s == US_OK && any_left(&r)) s = step(&r, err);
    us_progress_end(ctx);
    for (size_t k = 0; r.lanes && k < r.n_lanes; k++) end(&r.lanes[k]);
    for (int i = 0; r.samplers && i < threads; i++) us_sampler_free(r.samplers[i]);
    us_free(r.samplers);
    us_free(r.lanes);
    us_free(r.segs);
    us_free(r.lane_of);
    us_free(r.status);
    us_free(r.errs);
    us_free(r.logits);
    for (size_t i = 0; s != US_OK && i < n; i++) us_generated_free(&out[i]);
    return s;
}

/* ---- where texts end ---- */

static us_status add_ids(const us_json_doc *d, us_json_ref at, uint32_t V, uint32_t **ids, size_t *n, us_err *err) {
    bool list = us_json_type_of(d, at) == US_JSON_ARRAY;
    size_t count = list ? us_json_count(d, at) : 1;
    *ids = us_calloc(count + 1, sizeof **ids);
    if (!*ids) return us_fail_nomem(err, "reading the ids that end a text");
    for (us_json_ref r = list ? us_json_first(d, at) : at; r != US_JSON_NO; r = list ? us_json_next(d, at, r) : US_JSON_NO) {
        int64_t id;
        if (us_json_i64(d, r, &id) && id >= 0 && id < V) (*ids)[(*n)++] = (uint32_t)id;
    }
    return US_OK;
}

static bool has_value(const us_json_doc *d, us_json_ref r) {
    return r != US_JSON_NO && us_json_type_of(d, r) != US_JSON_NULL;
}

us_status us_stop_ids(const us_structure *st, uint32_t **ids, size_t *n, us_err *err) {
    const us_checkpoint *ck = st->ck;
    us_config c;
    uint32_t V = UINT32_MAX;
    us_file f = {0};
    us_err no = {0};
    *ids = NULL;
    *n = 0;
    US_TRY(us_config_open(&ck->config, &c, err));
    V = us_config_u32(&c, "vocab_size|padded_vocab_size", V);
    if (us_fs_open_beneath(ck->path, US_LIT("generation_config.json"), US_FS_FOLLOW_LINKS, &f, &no) == US_OK) {
        size_t size = f.size < CONFIG_BYTES_MAX ? (size_t)f.size : CONFIG_BYTES_MAX;
        char *text = us_malloc(size + 1);
        us_json_doc d = {0};
        us_status s = text ? us_file_read(&f, 0, text, size, err) : us_fail_nomem(err, "reading generation_config.json");
        us_file_close(&f);
        if (s == US_OK) s = us_json_doc_parse(&d, (us_str){text, size}, 0, err);
        us_json_ref at = s == US_OK ? us_json_get(&d, 0, "eos_token_id") : US_JSON_NO;
        bool found = s == US_OK && has_value(&d, at);
        if (found) s = add_ids(&d, at, V, ids, n, err);
        if (s != US_OK) us_err_where(err, "generation_config.json");
        us_json_doc_free(&d);
        us_free(text);
        if (s != US_OK || found) return s;
    }
    us_json_ref at = us_config_get(&c, "eos_token_id");
    return has_value(&ck->config, at) ? add_ids(&ck->config, at, V, ids, n, err) : US_OK;
}
