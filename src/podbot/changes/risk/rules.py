"""What runs, by where it lies: the table behind `risk`, and nothing but the table.

A pattern is a path without case. ``name`` and ``a/b`` fit the end of a path at any depth, ``a/**``
all that lies below any ``a``; with a leading ``/`` it starts at the root, with ``~/`` at a home
folder. ``*`` stays within one name. docs/risk.md shows the same table; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum

from podbot.frozen import dataclass


class Level(StrEnum):
    """How little it takes for a change to run."""

    BY_ITSELF = "runs by itself"
    """Something on the host runs or obeys it without the user meaning to."""
    WHEN_USED = "runs when used"
    """It runs when the user builds, tests, installs or starts it."""


CHECKED = "2026-11"
"""The month in which the rows were last looked over; a row can name its own month, or day."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Paths that are run or obeyed, and by what. ``guards``: that it is gone matters too.

    ``source`` is where one can read that it is so, ``checked`` when the row was last looked over.
    """

    level: Level
    patterns: tuple[str, ...]
    reason: str
    source: str
    guards: bool = False
    checked: str = CHECKED


def _by_itself(
    reason: str, source: str, patterns: str, guards: bool = False, checked: str = CHECKED
) -> Rule:
    return Rule(Level.BY_ITSELF, tuple(patterns.split()), reason, source, guards, checked)


def _when_used(reason: str, source: str, patterns: str, guards: bool = False) -> Rule:
    return Rule(Level.WHEN_USED, tuple(patterns.split()), reason, source, guards)


LISTED_CHECKS = "git runs the checks it lists, once they are installed"
"""The reason of what is by itself where the host has git hooks installed."""

BUILD_SERVER = "a build server runs it when this is pushed"
INSTALLS = "installing or building the package runs what it says"
STEERS = "it steers where packages come from and what runs as they are installed"
TOOL_SETTINGS = "it is a tool's settings and can hold code that the tool runs"
FOLLOWED = frozenset({BUILD_SERVER, INSTALLS, STEERS, TOOL_SETTINGS})
"""The reasons of what runs when used and names other files that then run."""
PYTHON_START = "Python runs it at every start"
COMMAND_FOLDER = "it is in a folder of commands: it can take the place of another"
LEADS_OUT = "it is a link out of the target: using it reaches other files"
"""Reasons that every environment of Python's has: see `folding`."""

# Within a level the first rule that fits gives the reason, so the particular come first.
RULES: tuple[Rule, ...] = (
    # Version control. What lies inside `.git` is told apart in `_git`.
    _by_itself(
        "git attributes choose programs that git runs on the files they name",
        "gitattributes(5)",
        ".gitattributes .config/git/attributes",
        guards=True,
    ),
    _by_itself(
        "git obeys this setting file: it can name programs to run",
        "git-config(1)",
        ".gitconfig* .config/git/**",
    ),
    _by_itself(
        "it tells git where submodules come from and how to update them",
        "gitmodules(5)",
        ".gitmodules",
    ),
    _by_itself(
        "the version control system of this folder obeys it: it can name programs to run",
        "hgrc(5); the manuals of Sapling, jj, Breezy, Darcs, Subversion and Fossil",
        ".hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .hg/hooks/** .hgrc .hgrc.d/** .sl/config "
        ".jj/repo/config.toml .jj/workspace-config.toml .config/jj/** .bzr/branch/branch.conf "
        "_darcs/prefs/** .svn/hooks/** .fossil-settings/**",
    ),
    # Shells, and what they load on entering a folder
    _by_itself(
        "your shell loads it on entering the folder",
        "direnv(1); the manuals of autoenv, RVM, mise, asdf, SDKMAN, fnox and shadowenv",
        ".envrc .direnvrc .config/direnv/** .autoenv .autoenv.zsh .autoenv_leave.zsh .rvmrc "
        "mise.toml .mise.toml mise.*.toml .mise.*.toml mise/config*.toml .mise/** "
        ".config/mise.toml .config/mise/** .rtx.toml .tool-versions .asdfrc .sdkmanrc "
        ".config/fnox/** .shadowenv.d/**",
    ),
    _by_itself(
        "a shell runs it at its start or end",
        "bash(1), zsh(1), fish(1), tcsh(1), mksh(1); the manuals of Nushell, Elvish, Xonsh and "
        "PowerShell",
        ".bashrc .bashrc.d/** .bash_profile .bash_login .bash_logout .bash_aliases "
        ".bash_completion .bash_functions .profile .profile.d/** .zshrc .zshrc.d/** .zshenv "
        ".zprofile .zlogin .zlogout .zsh/** .zfunc/** .oh-my-zsh/** .zprezto/** .zimrc .p10k.zsh "
        ".kshrc .mkshrc .shrc .ashrc .cshrc .tcshrc .login .logout .aliases .zsh_plugins.txt "
        ".zsh_plugins.zsh .xonshrc "
        ".config/xonsh/** config.fish fish/conf.d/** fish/functions/** fish/completions/** "
        ".config/nushell/** .config/elvish/** .elvish/** .config/powershell/** .config/zsh/** "
        ".config/bash/** .config/shell/** .inputrc .config/starship.toml .config/atuin/** "
        ".config/bash_completion .local/share/bash-completion/** fish/vendor_conf.d/** "
        "fish/fish_variables",
    ),
    _by_itself(
        "start files of shells load it, where the tool it belongs to is installed",
        "the lines that rustup, nvm, SDKMAN, asdf, fzf, opam, Deno and conda add to start files",
        ".cargo/env .cargo/env.* .local/bin/env .local/bin/env.* .nvm/nvm.sh .nvm/bash_completion "
        ".sdkman/bin/sdkman-init.sh .asdf/asdf.* .fzf.bash .fzf.zsh .opam/opam-init/** .deno/env "
        ".deno/env.* .ghcup/env google-cloud-sdk/*.inc miniconda3/etc/profile.d/** "
        "anaconda3/etc/profile.d/** miniforge3/etc/profile.d/** mambaforge/etc/profile.d/**",
    ),
    _by_itself(
        "your session reads it at login",
        "Xsession(5), xinit(1), pam_env(8), environment.d(5), xscreensaver(1), sxhkd(1)",
        ".xprofile .xinitrc .xsession .xsessionrc .xserverrc .xclients .pam_environment "
        "environment.d/*.conf .xbindkeysrc .xscreensaver "
        ".sxhkdrc .config/sxhkd/**",
    ),
    # Editors
    _by_itself(
        "the editor reads it on opening the folder: its tasks and settings name programs to run",
        "the manuals of VS Code, JetBrains IDEs, Zed, Fleet, Helix, Sublime Text and the language "
        "servers",
        ".vscode/** .vscode-server/** *.code-workspace .devcontainer/** .devcontainer.json "
        ".idea/** .run/*.xml *.iml *.ipr *.iws .fleet/** .zed/** .nova/** .vs/** .helix/** "
        "*.sublime-project .externaltoolbuilders/** .theia/** .lapce/** .neoconf.json "
        ".nlsp-settings/** rust-project.json .rust-project.json rust-analyzer.toml "
        ".rust-analyzer.toml .lsp/** .clojure-lsp/** .luarc.json .luarc.jsonc .ycm_extra_conf.py "
        ".gitpod.yml .idx/**",
    ),
    _by_itself(
        "the editor runs it at its start or on opening a file beside it",
        "vim(1), nvim(1), nano(1), joe(1); the manuals of Emacs, Kakoune, micro and Helix",
        ".vimrc _vimrc .gvimrc .vimrc.local .lvimrc .local.vimrc .exrc .vim/** .nvimrc .nvim.lua "
        ".nvim/** .config/nvim/** .config/vim/** .emacs .emacs.d/** .config/emacs/** "
        ".config/doom/** .doom.d/** .spacemacs .spacemacs.d/** .dir-locals.el .dir-locals-2.el "
        ".dir-config.el .config/helix/** .config/kak/** .kakrc .kakrc.local .config/micro/** "
        ".config/zed/** .config/code/user/** .config/vscodium/** .config/cursor/** "
        ".config/jetbrains/** .config/sublime-text*/** .nanorc .joerc .emacs.desktop "
        ".local/share/nvim/site/**",
    ),
    _by_itself(
        "the editor's completion runs it as soon as a file below is opened",
        "rope: Configuration (it serves python-lsp-server and others)",
        ".ropeproject/**",
    ),
    # Agents
    _by_itself(
        "agents take it as instructions",
        "agents.md and each agent's own manual",
        "claude.md claude.local.md agents.md agents.override.md agent.md gemini.md qwen.md "
        "crush.md grok.md warp.md codex.md cursor.md copilot.md copilot-instructions.md "
        ".cursorrules "
        ".windsurfrules .clinerules .clinerules-* .clinerules/** .roorules .roorules-* .rules "
        ".goosehints .continuerules .augment-guidelines .openhands_instructions .replit.md "
        ".github/instructions/** .github/prompts/** .github/chatmodes/** .github/agents/** "
        ".github/skills/**",
    ),
    _by_itself(
        "agents read it at their start: it can name programs, tools and servers to run",
        "each agent's own manual, its page on settings, hooks and MCP servers",
        ".claude/** .claude.json .claude-plugin/** .codex/** .gemini/** .qwen/** .cursor/** "
        ".windsurf/** .codeium/** .goose/** .config/goose/** .aider* .mcp.json mcp.json .mcp/** "
        ".cline/** .roo/** .roomodes .kilocode/** .kilocodemodes opencode.json opencode.jsonc "
        ".opencode/** .config/opencode/** .continue/** .continuerc.json .amazonq/** .kiro/** "
        ".junie/** .augment/** .trae/** .factory/** crush.json .crush.json .crush/** "
        ".openhands/** .agents/** .agent/** .devin/** .warp/** .zencoder/** .tabnine/** .cody/** "
        ".rovodev/** .iflow/** .kimi/** .serena/** gptme.toml .gptme/** "
        ".amp/** .grok/** .vibe/** .qoder/** .pi/** .copilot/** .github/hooks/** "
        ".github/copilot/** "
        ".config/github-copilot/** .config/podbot/** .podbot.toml podbot.toml",
    ),
    # Interpreters
    _by_itself(
        PYTHON_START,
        "Python's documentation: site, venv, the Windows embeddable package",
        "sitecustomize.py usercustomize.py sitecustomize/__init__.py usercustomize/__init__.py "
        "*.pth pyvenv.cfg *._pth .pythonrc .pythonrc.py .pythonstartup",
    ),
    _by_itself(
        "an interpreter or debugger runs it when it is started in this folder",
        "gdb(1), lldb(1), R (Startup), irb(1), ghci, octave(1), sqlite3(1), psql(1), IPython, "
        "Jupyter",
        ".rprofile .renviron .gdbinit .gdbinit.py .lldbinit .pdbrc .pdbrc.py .irbrc .pryrc .ghci "
        ".ocamlinit .octaverc .sqliterc .psqlrc .juliarc.jl julia/config/startup.jl .guile "
        ".perldb .ipython/** ipython_config.py ipython_kernel_config.py .jupyter/** "
        "jupyter_*config.py .config/ipython/** .config/matplotlib/** .radare2rc .rdata .iex.exs "
        ".rdbgrc .byebugrc startup.m .psysh.php .config/gdb/**",
    ),
    _by_itself(
        "a web server obeys it as soon as it lies there",
        "Apache HTTP Server: .htaccess; PHP: .user.ini",
        ".htaccess .user.ini",
    ),
    _by_itself(
        "cargo obeys it, and editors run cargo by themselves: it can name programs to run",
        "The Cargo Book: Configuration; The rustup book: Overrides",
        ".cargo/config .cargo/config.toml rust-toolchain rust-toolchain.toml",
    ),
    # The session and the machine
    _by_itself(
        "the service manager starts what it says",
        "systemd.unit(5), launchd.plist(5); the manuals of runit, s6 and Supervisor",
        "systemd/user/** .config/systemd/** .local/share/systemd/** systemd/system/** "
        "library/launchagents/** library/launchdaemons/** .config/runit/** .config/s6/** "
        ".config/upstart/** .config/supervisor/**",
    ),
    _by_itself(
        "it runs at set times",
        "cron(8), at(1), anacron(8)",
        "/var/spool/cron/** /var/spool/at/** /var/spool/anacron/** crontabs/** cron.d/** "
        "cron.hourly/** cron.daily/** cron.weekly/** cron.monthly/**",
    ),
    _by_itself(
        "the desktop starts it, at login or in place of a program you choose",
        "XDG Autostart, Desktop Entry and D-Bus specifications; each window manager's manual",
        "autostart/*.desktop .config/autostart/** .config/autostart-scripts/** "
        ".config/plasma-workspace/** .config/mimeapps.list .local/share/applications/** "
        "dbus-1/services/** dbus-1/system-services/** share/thumbnailers/** "
        "share/nautilus-python/** share/gnome-shell/extensions/** share/kservices5/** "
        "share/plasma/** share/xsessions/** share/wayland-sessions/** .config/i3/** .i3/** "
        ".config/sway/** .config/hypr/** .config/openbox/** .config/awesome/** .config/bspwm/** "
        ".config/qtile/** .xmonad/** .config/xmonad/** .fluxbox/** .mailcap .config/pulse/** "
        ".asoundrc autorun.inf *.lnk desktop.ini .config/river/** .config/niri/** .config/labwc/** "
        ".config/herbstluftwm/** .config/waybar/** .config/lxsession/** .config/xfce4/**",
    ),
    _by_itself(
        "the browser starts the program it names as soon as an extension asks",
        "Chrome for Developers: Native messaging; MDN: Native manifests (Chromium, Brave, Edge, "
        "Vivaldi and others read folders of the same name)",
        "nativemessaginghosts/** native-messaging-hosts/** .mozilla/pkcs11-modules/**",
        checked="2026-11-19",
    ),
    _by_itself(
        "the sound service of your session loads it at login: it can name programs and scripts",
        "pipewire.conf(5): context.exec, context.modules; WirePlumber: Configuration file, Custom "
        "Scripts",
        ".config/pipewire/** .config/wireplumber/** .local/share/wireplumber/**",
        checked="2026-11-19",
    ),
    _by_itself(
        "rpm and all that calls it expand it: its macros can run shell commands and Lua",
        "rpm-config(5), rpm-macros(7): %(…), %{lua:…}",
        ".rpmmacros .config/rpm/**",
        checked="2026-11-19",
    ),
    _by_itself(
        "a program of your desktop's session runs commands or loads code from it",
        "the manuals of dunst, mako, SwayNotificationCenter, Polybar, Eww, AGS, kanshi, swayidle, "
        "Fcitx, KWin, Cinnamon, devilspie2, Conky and dconf; GTK: gtk-modules; xdg-user-dirs",
        ".config/dunst/** .config/mako/** .config/swaync/** .config/polybar/** .config/eww/** "
        ".config/ags/** .config/kanshi/** .config/swayidle/** "
        ".config/fcitx*/** .local/share/kwin/** .local/share/cinnamon/** "
        ".config/devilspie2/** .config/conky/** .conkyrc .gtkrc* "
        ".config/gtk-*/** .config/dconf/** .xinputrc .config/kglobalshortcutsrc "
        ".config/khotkeysrc .config/kwinrc .config/kdeglobals .config/ksmserverrc "
        ".config/user-dirs.dirs .config/locale.conf .i18n .dmrc",
        checked="2026-11-19",
    ),
    _by_itself(
        "a terminal program runs commands from it at its start",
        "tmux(1), screen(1), less(1); the manuals of zellij, kitty, Alacritty, WezTerm, lf, "
        "ranger, yazi, nnn, broot, bat and ripgrep",
        ".tmux.conf .tmux/** .config/tmux/** .screenrc .config/zellij/** .config/kitty/** "
        ".config/alacritty/** .config/wezterm/** .wezterm.lua .lessfilter .lesskey "
        ".config/lesskey .config/lf/** .config/ranger/** .config/yazi/** .config/nnn/** "
        ".config/broot/** .config/bat/** .config/ripgrep/** .ripgreprc",
    ),
    _by_itself(
        "it decides who may log in to this account, or what a connection runs",
        "sshd(8), ssh_config(5), rhosts(5), k5login(5), netrc(5), gpg(1)",
        ".ssh/** .rhosts .shosts .k5login .k5users .netrc .gnupg/** .pki/**",
    ),
    _by_itself(
        "arriving mail is handed to the programs it names",
        "aliases(5), procmailrc(5), maildrop(1), dot-qmail(5), fetchmail(1)",
        ".forward .procmailrc .mailfilter .qmail* .maildroprc .fetchmailrc",
    ),
    _by_itself(
        "command line tools take helper programs and logins from it",
        "each tool's manual: AWS CLI (credential_process), kubectl (exec), Docker (credHelpers), "
        "curl, wget, mutt, pass, gh",
        ".aws/** .azure/** .kube/** .docker/config.json .docker/cli-plugins/** "
        ".docker/contexts/** .config/gcloud/** .config/gh/** .config/glab-cli/** "
        ".config/containers/** .password-store/** .curlrc .wgetrc .config/curlrc .msmtprc .muttrc "
        ".config/mutt/** .config/op/** .git-credentials",
    ),
    _by_itself(
        "this folder holds what the whole machine runs and obeys",
        "hier(7)",
        "/etc/** /boot/**",
    ),
    _by_itself(
        "the system loads it",
        "file-hierarchy(7), udev(7), modules-load.d(5), polkit(8)",
        "/lib/systemd/** /usr/lib/systemd/** /usr/local/lib/systemd/** /lib/udev/** "
        "/usr/lib/udev/** /lib/modules/** /usr/lib/modules/** /usr/lib/modules-load.d/** "
        "/usr/lib/environment.d/** /usr/share/dbus-1/** /usr/share/polkit-1/** "
        "/usr/lib/tmpfiles.d/** /usr/lib/sysctl.d/**",
    ),
    # Runs when used: continuous integration
    _when_used(
        BUILD_SERVER,
        "each build service's manual",
        ".github/workflows/** .github/actions/** action.yml action.yaml .github/dependabot.yml "
        ".gitlab-ci.yml .gitlab-ci.yaml .gitlab-ci/** .gitlab/** .circleci/** jenkinsfile "
        "jenkinsfile.* *.jenkinsfile azure-pipelines*.yml azure-pipelines*.yaml "
        ".azure-pipelines/** .azuredevops/** .travis.yml .travis/** .buildkite/** .drone.yml "
        ".drone.jsonnet .woodpecker.yml .woodpecker.yaml .woodpecker/** bitbucket-pipelines.yml "
        "appveyor.yml .appveyor.yml .cirrus.yml .cirrus.star .semaphore/** buildspec.yml "
        "buildspec.yaml cloudbuild.yaml cloudbuild.json .forgejo/** .gitea/** .teamcity/** "
        ".tekton/** .builds/** .build.yml .zuul.yaml .zuul.d/** .readthedocs.yml "
        ".readthedocs.yaml netlify.toml vercel.json .harness/** .ci/** .evergreen.yml wercker.yml "
        "codemagic.yaml bitrise.yml renovate.json renovate.json5 .renovaterc",
        guards=True,
    ),
    _when_used(
        LISTED_CHECKS,
        "the manuals of pre-commit, prek, husky, Lefthook, hk, Overcommit, CaptainHook, GrumPHP, "
        "lint-staged and commitlint",
        ".pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml .husky/** "
        ".huskyrc* lefthook.yml lefthook.yaml lefthook.toml lefthook.json "
        "lefthook-local.* .lefthook.* .lefthook-local.* .lefthook/** prek.toml .prek.toml hk.pkl "
        "hk.local.pkl .config/hk.pkl "
        ".lintstagedrc* lint-staged.config.* .githooks/** githooks/** .git-hooks/** .hooks/** "
        ".overcommit.yml captainhook.json grumphp.yml commitlint.config.* .gitlint .prek/**",
        guards=True,
    ),
    # Builds
    _when_used(
        "a build runs what it says",
        "each build tool's manual",
        "makefile makefile.* gnumakefile *.mk *.mak justfile .justfile *.just taskfile.yml "
        "taskfile.yaml taskfile.*.yml cmakelists.txt *.cmake cmakepresets.json "
        "cmakeuserpresets.json configure configure.ac configure.in autogen.sh bootstrap build.rs "
        "build.gradle build.gradle.kts settings.gradle settings.gradle.kts *.gradle *.gradle.kts "
        "gradle.properties gradle/wrapper/** .gradle/init.d/** gradlew gradlew.bat mvnw mvnw.cmd "
        ".mvn/** pom.xml build.xml rakefile rakefile.rb *.rake gulpfile.* gruntfile.* build.zig "
        "mix.exs rebar.config rebar.config.script meson.build sconstruct sconscript wscript "
        "latexmkrc .latexmkrc .config/latexmk/** build.sbt *.sbt build.sc build.mill dune "
        "dune-project build.bazel build.bzl "
        "workspace.bazel workspace.bzlmod module.bazel *.bzl .bazelrc buck .buckconfig pants.toml "
        "magefile.go package.swift podfile fastfile fastlane/** *.csproj *.fsproj *.vbproj "
        "*.vcxproj directory.build.props directory.build.targets *.targets nuget.config "
        "dotnet-tools.json setup.hs stack.yaml *.cabal cabal.project project.clj deps.edn "
        "build.clj build.boot build.pl makefile.pl cpanfile tiltfile earthfile vagrantfile "
        "procfile skaffold.yaml devbox.json flake.nix shell.nix default.nix devenv.nix "
        "build.ninja xmake.lua premake5.lua nx.json turbo.json lerna.json rush.json .moon/** "
        ".please/** .replit dodo.py fabfile.py sakefile .jvmopts .sbtopts guardfile build "
        "workspace",
    ),
    # Packages
    _when_used(
        INSTALLS,
        "npm: scripts",
        "package.json",
    ),
    _when_used(
        INSTALLS,
        "each package manager's manual, its page on build and install scripts",
        "setup.py setup.cfg pyproject.toml pdm_build.py hatch_build.py composer.json cargo.toml "
        "*.gemspec gemfile gemfile.* pipfile requirements*.txt requirements/*.txt "
        "constraints*.txt environment.yml conanfile.py conanfile.txt vcpkg.json portfile.cmake "
        "*.podspec *.nuspec pkgbuild *.ebuild debian/rules debian/control debian/*inst debian/*rm "
        "snapcraft.yaml dub.json dub.sdl *.nimble package.yaml pubspec.yaml deno.json deno.jsonc "
        "jsr.json",
    ),
    _when_used(
        "a lock file decides which packages the next install fetches and runs",
        "each package manager's manual, its page on lock files",
        "package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock poetry.lock "
        "uv.lock pdm.lock pipfile.lock cargo.lock gemfile.lock composer.lock flake.lock mix.lock "
        "pnpm-workspace.yaml",
    ),
    _when_used(
        STEERS,
        "each package manager's manual, its page on configuration",
        ".npmrc .yarnrc .yarnrc.yml .yarn/releases/** .yarn/plugins/** .yarn/sdks/** "
        ".pnpmfile.cjs .pnpmfile.mjs .pnp.cjs .pnp.js .pnp.loader.mjs .pypirc pip.conf pip.ini "
        ".pip/** "
        ".config/pip/** uv.toml .config/uv/** .condarc .gemrc .bundle/config .cargo/** "
        ".m2/settings.xml .m2/extensions.xml .gradle/** .config/pypoetry/** poetry.toml "
        "bunfig.toml .config/npm/** "
        ".terraformrc .terraform.d/** go.work go.env .config/go/** .bowerrc .lfsconfig "
        ".config/nuget/** .nuget/** .config/composer/** .rpmrc",
    ),
    # Tests and tools
    _when_used(
        "a test run loads it",
        "each test runner's manual",
        "conftest.py pytest.ini .pytest.ini tox.ini tox.toml noxfile.py .coveragerc .rspec "
        "spec_helper.rb rails_helper.rb .mocharc* .nycrc* phpunit.xml phpunit.xml.dist "
        "karma.conf.* cypress/support/** cypress/plugins/** .testcaferc* wallaby.js "
        ".config/nextest.toml .proverc",
    ),
    _when_used(
        TOOL_SETTINGS,
        "each tool's manual",
        "*.config.js *.config.cjs *.config.mjs *.config.ts *.config.mts *.config.cts *.conf.js "
        ".*rc.js .*rc.cjs .*rc.mjs .*rc.ts .eslintrc* .babelrc* .prettierrc* .stylelintrc* .swcrc "
        ".pylintrc pylintrc .flake8 mypy.ini .mypy.ini .rubocop.yml .solargraph.yml .phpcs.xml "
        "phpstan.neon psalm.xml .php-cs-fixer.php rector.php .sublimelinter/** *.sublime-build "
        ".swiftlint.yml analysis_options.yaml .credo.exs .formatter.exs .scalafix.conf mkdocs.yml "
        "docs/conf.py docs/source/conf.py doc/conf.py .project .classpath .nodemonrc nodemon.json "
        ".luacheckrc .yardopts .storybook/**",
    ),
    _when_used(
        "containers are built and started from it",
        "Dockerfile and Compose references; podman-systemd.unit(5)",
        "dockerfile dockerfile.* *.dockerfile containerfile containerfile.* docker-compose*.yml "
        "docker-compose*.yaml compose.yml compose.yaml compose.*.yml compose.*.yaml "
        "docker-bake.hcl *.container *.kube quadlet/** docker-entrypoint*",
    ),
    _when_used(
        "programs started here take their environment from it",
        "dotenv and its ports, Compose, Flask",
        ".env .env.* *.env .flaskenv",
    ),
    _when_used(
        "it is part of an installed package's command",
        "Python's documentation: venv; Python Packaging User Guide: Entry points specification",
        "bin/activate bin/activate.* scripts/activate scripts/activate.* *.egg-link "
        "*.egg-info/entry_points.txt *.dist-info/entry_points.txt",
    ),
    _when_used(
        "opening it starts the program it names",
        "Desktop Entry Specification; the file types of macOS and Windows",
        "*.desktop *.command *.terminal *.workflow share/nautilus/scripts/** *.appimage *.url "
        "*.jar *.hta *.vbs *.scr",
    ),
    _when_used(
        "it is a script for a shell",
        "sh(1) and the others' manuals",
        "*.sh *.bash *.zsh *.ksh *.fish *.csh *.bat *.cmd *.ps1 *.psm1",
    ),
    _when_used(
        "programs load it as a library, a Python one in place of the source of that name",
        "ld.so(8); Python's documentation: importlib",
        "*.so *.so.* *.dll *.dylib *.pyd",
    ),
    _when_used(
        "Python runs it in place of the source, and it cannot be read",
        "Python's documentation: py_compile",
        "*.pyc *.pyo",
    ),
    # Last: whatever else lies where programs look for their settings
    _when_used(
        "it is the setting of a program in your home folder",
        "XDG Base Directory Specification",
        "~/.config/** ~/.*rc ~/.local/share/**",
    ),
)

FRESH_ROOTS: tuple[str, ...] = (
    ".claude/worktrees/*",
    ".cursor/worktrees/*/*",
    ".codex/worktrees/*/*",
)
"""Where agents keep whole projects: what lies there is judged as if nothing were above it."""
