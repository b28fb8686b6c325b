// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each add_ function describes one to the parser. The one that the user calls sets the exit code, or
// throws Failure.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace backplane::tool {

void add_list(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_new(CLI::App& app, int& exit_code);
void add_trace(CLI::App& app);
// `program`: the words after run's own options.
CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, int& exit_code);
// Hidden: the child process that runs plugin code.
void add_query(CLI::App& app);
// Hidden: a rank of bench.
void add_bench_rank(CLI::App& app);
// Hidden: writes manual pages and shell completions into a directory, for the build.
void add_documents(CLI::App& app);

}  // namespace backplane::tool
