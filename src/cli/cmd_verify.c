/** `understudy verify SRC DST`: is DST a proxy of SRC, byte for byte? */
#include "cli/cli.h"
#include "understudy/us_proxy.h"

static const us_option options[] = {
    {"ignore-manifest", 0, US_OPT_FLAG, NULL, "Find the kept experts by their bytes even where a manifest names them.", false},
    {"follow-links", 0, US_OPT_FLAG, NULL, "Follow links that lead out of the folders.", false},
    {NULL, 0, US_OPT_FLAG, NULL, NULL, false},
};

static us_status run(us_cli *cli, us_err *err) {
    us_verify_request r = {.src = us_cli_arg(cli, 0), .dst = us_cli_arg(cli, 1)};
    us_report *report = NULL;
    r.ignore_manifest = us_cli_flag(cli, "ignore-manifest");
    r.follow_links = us_cli_flag(cli, "follow-links");
    us_status s = us_proxy_verify(us_cli_ctx(cli), &r, &report, err);
    if (s == US_OK || s == US_E_DIFFERENT) {
        if (us_cli_json(cli)) fprintf(us_cli_out(cli), "%s\n", us_report_json(report));
        else fputs(us_report_text(report), us_cli_out(cli));
        us_report_free(report);
    }
    return s;
}

const us_command us_cmd_verify = {
    .name = "verify",
    .summary = "prove that a folder is a proxy of a checkpoint, byte for byte",
    .usage = "SRC DST [options]",
    .description =
        "Reads both again and compares what DST holds with what slicing SRC gives: names, types, shapes and bytes of every tensor, config.json key by key,\n"
        "quantisation lists, the index and its totals, header metadata, and every other file. DST may be a ladder. Exit status 0: equal; 3: different, and the\n"
        "first difference is told; 1: something cannot be read.\n\n"
        "The manifest DST/understudy.json says which experts were kept; without it they are found by their bytes. SRC may have moved.\n\n"
        "With two config.json files their keys are compared: keys of size, and keys of behaviour (rope_theta, vocabulary, norm_topk_prob ...), which make the\n"
        "exit status 3.",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .run = run,
    .examples = "understudy verify Qwen3-30B-A3B q3-e32\n"
                "understudy verify --ignore-manifest --json SRC DST\n"
                "understudy verify reference/config.json tiny/config.json",
};
