// SPDX-License-Identifier: Apache-2.0
//
// Runs the conformance suite in a child process, prints each result as soon as it is known, and keeps the report so far
// in case the check is ended early.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

struct FinishedSuite {
  int exit_code = 0;
  std::vector<std::string> texts;  // of `write`; empty if the suite ended before the first case
  std::string trouble;             // why the report is incomplete; empty if it is complete
};

// `stream` gets a line per case. `write` formats a report, once or more; it runs in the child process, for each case.
// SIGINT, SIGTERM and SIGHUP end the suite; their former actions are restored on return.
FinishedSuite run_suite(const conformance::Subject& subject, conformance::Settings settings, FILE* stream,
                        const std::function<std::vector<std::string>(const conformance::Report&)>& write);

}  // namespace backplane::tool
