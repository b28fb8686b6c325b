# SPDX-License-Identifier: Apache-2.0
from backplane._command import main

main()
