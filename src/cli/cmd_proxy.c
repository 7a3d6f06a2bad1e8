/** `understudy proxy SRC DST`: options to a request, the report to standard output. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "understudy/us_proxy.h"

enum { SIZES_MAX = 32 };

static const us_option options[] = {
    {"experts", 'e', US_OPT_STRING, "N[,N...]", "Experts to keep in every layer; several sizes make a nested ladder, one folder each (DST/e64, DST/e32).", false},
    {"keep-ratio", 0, US_OPT_DOUBLE, "R", "Keep round(R x experts), moved to the nearest legal size.", false},
    {"select", 0, US_OPT_STRING, "HOW", "cluster (default), reap-like, frequency, router-norm, first, random, or list:FILE.", false},
    {"routing", 0, US_OPT_STRING, "FILE", "Routing data (.npy, .npz, .safetensors) for the selections that use them; may be given several times.", true},
    {"protect", 0, US_OPT_STRING, "LAYER:ID[,ID]", "Experts that stay whatever the selection says (LAYER may be *), or auto; may be given several times.", true},
    {"drop-mtp", 0, US_OPT_FLAG, NULL, "Leave the MTP layers out, tensors and config keys; by default their experts are cut in lockstep.", false},
    {"layers", 0, US_OPT_STRING, "N|LIST", "Cut layers too: keep the first N, or those of a list such as 0,1,5-7. No faithful proxy any more.", false},
    {"dry-run", 'n', US_OPT_FLAG, NULL, "Check and plan, write nothing.", false},
    {"force", 'f', US_OPT_FLAG, NULL, "Replace a finished proxy at DST; deletes only what this tool wrote.", false},
    {"follow-links", 0, US_OPT_FLAG, NULL, "Follow links that lead out of SRC.", false},
    {"headers-only", 0, US_OPT_FLAG, NULL, "With --dry-run: accept shards whose data are cut off.", false},
    {NULL, 0, US_OPT_FLAG, NULL, NULL, false},
};

/* "64,32" into sizes. Numbers that are wrong in value are the library's to refuse, text that is no number is wrong usage. */
static us_status parse_sizes(us_cli *cli, const char *text, int64_t *sizes, size_t *n, us_err *err) {
    const char *p = text;
    *n = 0;
    for (;;) {
        char *end = NULL;
        bool digits = (*p >= '0' && *p <= '9') || (*p == '-' && p[1] >= '0' && p[1] <= '9');
        if (!digits) return us_cli_usage(cli, err, "--experts %s: no list of numbers", text);
        if (*n == SIZES_MAX) return us_cli_usage(cli, err, "--experts: at most %d sizes", SIZES_MAX);
        sizes[(*n)++] = strtoll(p, &end, 10);
        if (!*end) return US_OK;
        if (*end != ',') return us_cli_usage(cli, err, "--experts %s: no list of numbers", text);
        p = end + 1;
    }
}

static us_status run(us_cli *cli, us_err *err) {
    int64_t sizes[SIZES_MAX];
    us_proxy_request r = {.src = us_cli_arg(cli, 0), .dst = us_cli_arg(cli, 1)};
    const char *experts = us_cli_string(cli, "experts", NULL);
    r.select = us_cli_string(cli, "select", "cluster");
    if (experts) US_TRY(parse_sizes(cli, experts, sizes, &r.n_sizes, err));
    r.sizes = sizes;
    r.keep_ratio = us_cli_double(cli, "keep-ratio", 0);
    if (experts && r.keep_ratio != 0) return us_cli_usage(cli, err, "--experts and --keep-ratio exclude each other");
    if (!experts && r.keep_ratio == 0 && strncmp(r.select, "list:", 5) != 0) return us_cli_usage(cli, err, "how many experts? give --experts N or --keep-ratio R");
    r.routing = us_cli_strings(cli, "routing", &r.n_routing);
    r.protect = us_cli_strings(cli, "protect", &r.n_protect);
    r.layers = us_cli_string(cli, "layers", NULL);
    r.drop_mtp = us_cli_flag(cli, "drop-mtp");
    r.dry_run = us_cli_flag(cli, "dry-run");
    r.force = us_cli_flag(cli, "force");
    r.follow_links = us_cli_flag(cli, "follow-links");
    r.headers_only = us_cli_flag(cli, "headers-only");
    if (r.headers_only && !r.dry_run) return us_cli_usage(cli, err, "--headers-only needs --dry-run: without data nothing can be written");
    us_report *report = NULL;
    US_TRY(us_proxy_make(us_cli_ctx(cli), &r, &report, err));
    if (us_cli_json(cli)) fprintf(us_cli_out(cli), "%s\n", us_report_json(report));
    else fprintf(us_cli_out(cli), "%s%s", r.dry_run ? "dry run, nothing is written\n" : "", us_report_text(report));
    us_report_free(report);
    return US_OK;
}

const us_command us_cmd_proxy = {
    .name = "proxy",
    .summary = "make a smaller model with the same structure: fewer experts, everything else as it is",
    .usage = "SRC DST --experts N[,N...] [options]",
    .description =
        "Reads the Mixture-of-Experts checkpoint in the folder SRC and writes to DST the same model with N experts in every MoE layer. Kept experts are\n"
        "byte-exact copies in the layout and quantisation they have; router rows are the rows of the kept experts; config.json, the index and quantisation\n"
        "lists are edited where they must be; all other files are copied. The model is never loaded.\n\n"
        "Work happens in DST.understudy-partial, which becomes DST when everything is complete. After a kill or a full disk the same command goes on\n"
        "where it stopped. DST/understudy.json says where every expert comes from and holds the SHA-256 of every tensor; it can be used as a list file.\n\n"
        "At the end it is said what must be changed elsewhere: trainer arguments, loaders, engine paths that depend on the number of experts.",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .run = run,
    .examples = "understudy proxy Qwen3-30B-A3B q3-e32 --experts 32\n"
                "understudy proxy DeepSeek-V3 ladder --experts 128,64,32 --routing routed.npz\n"
                "understudy proxy SRC DST --select list:kept.json --dry-run",
};
