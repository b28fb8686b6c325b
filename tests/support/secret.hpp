// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "support/environment.hpp"

namespace backplane::test {

// Jobs that begin during its lifetime have a secret.
class ScopedSecret {
 public:
  ScopedSecret() : variable_("BACKPLANE_SECRET_FILE", write()) {}

 private:
  std::string write() const {
    const std::string path = directory_.path() / "secret";
    std::ofstream(path) << "s3cretWordOfThisTestThatNobodyPrints\n";
    ::chmod(path.c_str(), 0600);
    return path;
  }

  const ScopedDirectory directory_;
  const ScopedVariable variable_;
};

}  // namespace backplane::test
